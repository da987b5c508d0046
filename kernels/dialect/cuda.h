// The kernel language over CUDA, for compute capability 8.0 and up. The reader puts `vectors.h` in place of its line, so
// NVRTC needs no include folder. Order: barriers, simdgroup operations, mathematics, atomics, copies, tiles.
#pragma once
#define LY_FN __device__ __forceinline__
#include "dialect/vectors.h"

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

namespace ly {
// Threadgroups have one dimension.
LY_FN uint lane() { return threadIdx.x & 31u; }
} // namespace ly

// Barriers. CUDA's order all of memory, whatever the flags.
enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_device_and_threadgroup };
LY_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
LY_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }

// Simdgroup operations. Shuffles move words of 32 bits: narrower numbers are widened, wider ones and vectors split.
namespace ly {
template <class MOVE> LY_FN float moved(float v, MOVE move) { return __uint_as_float(move(__float_as_uint(v))); }
template <class MOVE> LY_FN uint moved(uint v, MOVE move) { return move(v); }
template <class MOVE> LY_FN int moved(int v, MOVE move) { return int(move(uint(v))); }
template <class MOVE> LY_FN ushort moved(ushort v, MOVE move) { return ushort(move(uint(v))); }
template <class MOVE> LY_FN uchar moved(uchar v, MOVE move) { return uchar(move(uint(v))); }
template <class MOVE> LY_FN bool moved(bool v, MOVE move) { return move(uint(v)) != 0u; }
template <class MOVE> LY_FN bfloat moved(bfloat v, MOVE move) { v.bits = ushort(move(uint(v.bits))); return v; }
template <class MOVE> LY_FN half moved(half v, MOVE move) { v.bits = ushort(move(uint(v.bits))); return v; }
template <class T, int N, class MOVE> LY_FN vec<T, N> moved(vec<T, N> v, MOVE move) {
#pragma unroll
  for (int i = 0; i < N; ++i) v.e[i] = moved(v.e[i], move);
  return v;
}
} // namespace ly
template <class T> LY_FN T simd_shuffle(T v, uint from) { return ly::moved(v, [=](uint w) { return __shfl_sync(~0u, w, from); }); }
template <class T> LY_FN T simd_broadcast(T v, uint from) { return simd_shuffle(v, from); }
template <class T> LY_FN T simd_shuffle_xor(T v, uint mask) { return ly::moved(v, [=](uint w) { return __shfl_xor_sync(~0u, w, mask); }); }
template <class T> LY_FN T simd_shuffle_up(T v, uint by) { return ly::moved(v, [=](uint w) { return __shfl_up_sync(~0u, w, by); }); }
template <class T> LY_FN T simd_shuffle_down(T v, uint by) { return ly::moved(v, [=](uint w) { return __shfl_down_sync(~0u, w, by); }); }

// Mathematics. `float` versions are CUDA's own: `expf` and `logf` within 2 ulp, `rsqrtf` within 2, `sqrtf` and division
// rounded correctly. (`__expf` would be off by 1e-5 at -80.) Vectors go one component after the other.
LY_FN float rsqrt(float x) { return ::rsqrtf(x); }
LY_FN float exp(float x) { return ::expf(x); }
LY_FN float log(float x) { return ::logf(x); }
LY_FN float sqrt(float x) { return ::sqrtf(x); }
// One instruction; within 2^-22 of itself.
LY_FN float ly_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
template <class T> LY_FN T max(T a, T b) { return a > b ? a : b; }
template <class T> LY_FN T min(T a, T b) { return a < b ? a : b; }
template <class T> LY_FN T clamp(T v, T low, T high) { return min(max(v, low), high); }
template <class T> LY_FN T select(T no, T yes, bool which) { return which ? yes : no; }
#define LY_MAP(name)                                                                  \
  template <int N> LY_FN ly::vec<float, N> name(ly::vec<float, N> a) {                \
    for (int i = 0; i < N; ++i) a.e[i] = name(a.e[i]);                                \
    return a;                                                                         \
  }
LY_MAP(exp) LY_MAP(log) LY_MAP(sqrt) LY_MAP(rsqrt) LY_MAP(abs)
#undef LY_MAP
#define LY_MAP(name)                                                                  \
  template <class T, int N> LY_FN ly::vec<T, N> name(ly::vec<T, N> a, ly::vec<T, N> b) { \
    for (int i = 0; i < N; ++i) a.e[i] = name(a.e[i], b.e[i]);                        \
    return a;                                                                         \
  }
LY_MAP(max) LY_MAP(min)
#undef LY_MAP
template <int N> LY_FN ly::vec<float, N> fma(ly::vec<float, N> a, ly::vec<float, N> b, ly::vec<float, N> c) {
  for (int i = 0; i < N; ++i) a.e[i] = fma(a.e[i], b.e[i], c.e[i]);
  return a;
}

template <class T> LY_FN T simd_sum(T v) {
#pragma unroll
  for (uint mask = 16; mask > 0; mask /= 2) v = v + simd_shuffle_xor(v, mask);
  return v;
}
template <class T> LY_FN T simd_max(T v) {
#pragma unroll
  for (uint mask = 16; mask > 0; mask /= 2) v = max(v, simd_shuffle_xor(v, mask));
  return v;
}
template <class T> LY_FN T simd_min(T v) {
#pragma unroll
  for (uint mask = 16; mask > 0; mask /= 2) v = min(v, simd_shuffle_xor(v, mask));
  return v;
}
// Whole numbers have an instruction for it.
LY_FN uint simd_sum(uint v) { return __reduce_add_sync(~0u, v); }
LY_FN int simd_sum(int v) { return __reduce_add_sync(~0u, v); }
LY_FN uint simd_max(uint v) { return __reduce_max_sync(~0u, v); }
LY_FN int simd_max(int v) { return __reduce_max_sync(~0u, v); }
LY_FN uint simd_min(uint v) { return __reduce_min_sync(~0u, v); }
LY_FN int simd_min(int v) { return __reduce_min_sync(~0u, v); }
template <class T> LY_FN T simd_prefix_exclusive_sum(T v) {
  T sum = v;
#pragma unroll
  for (uint by = 1; by < 32; by *= 2) {
    T before = simd_shuffle_up(sum, by);
    if (ly::lane() >= by) sum = sum + before;
  }
  T before = simd_shuffle_up(sum, 1);
  return ly::lane() == 0 ? T(0) : before;
}

// Atomics, relaxed.
enum memory_order { memory_order_relaxed };
struct atomic_uint { uint value; };
LY_FN uint atomic_fetch_add_explicit(atomic_uint *at, uint v, memory_order) { return atomicAdd(&at->value, v); }
LY_FN uint atomic_load_explicit(const atomic_uint *at, memory_order) { return *(const volatile uint *)&at->value; }
LY_FN void atomic_store_explicit(atomic_uint *at, uint v, memory_order) { *(volatile uint *)&at->value = v; }

namespace ly {
LY_FN uint shared_address(const void *p) { return uint(__cvta_generic_to_shared(p)); }
} // namespace ly

// The first argument of the instruction becomes the upper half.
LY_FN uint ly_pack2(float low, float high) {
  uint both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// What lies beyond the range of halfs becomes the last of them.
LY_FN uint ly_pack2_finite(float low, float high) {
  uint both;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// A launch may begin while the one before it ends (programmatic dependent launch): it is let in as soon as this one has
// started everywhere, and waits until this one is wholly done. What is read of other launches' results goes through
// pointers that are made anew behind the wait: loads through `const __restrict__` ones never change for the compiler, and
// it moves them to before the wait.
namespace ly {
LY_FN void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
template <class T> LY_FN void renew(const T *__restrict__ &pointer) {
  size_t address = __cvta_generic_to_global(pointer);
  asm volatile("" : "+l"(address)::"memory");
  pointer = (const T *)__cvta_global_to_generic(address);
}
LY_FN void renew_all() {}
template <class POINTER, class... REST> LY_FN void renew_all(POINTER &first, REST &...rest) {
  renew(first);
  renew_all(rest...);
}
} // namespace ly
template <class... POINTERS> LY_FN void ly_wait_previous(POINTERS &...pointers) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  ly::renew_all(pointers...);
#endif
}
template <uint THREADS, uint THREADGROUPS> LY_FN void ly_resident() {}
template <uint KIB> LY_FN void ly_threadgroup_kib() {}
LY_FN void ly_release_next() { ly::release_next(); }
template <class... POINTERS> LY_FN void ly_settled(POINTERS &...pointers) { ly::renew_all(pointers...); }

// Copies of 16 bytes past the registers, around the first-level cache.
LY_FN void ly_copy16(void *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ly::shared_address(to)), "l"(__cvta_generic_to_global(from)) : "memory");
}
LY_FN void ly_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint N> LY_FN void ly_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Tiles on tensor cores: mma m16n8k16, half in, float out. Block (i, j) of 16 x 8 is e[(i * N / 8 + j) * 4 ..][0..4];
// lane 4 g + t holds of it rows g (e[0], e[1]) and g + 8 (e[2], e[3]), columns 2 t and 2 t + 1.
template <uint M, uint N> struct ly_tile {
  static_assert(M % 16 == 0 && N % 8 == 0, "a tile is M x N, M a multiple of 16 and N of 8");
  float e[M * N / 32];
};

namespace ly {
// Four 8 x 8 matrices of halfs: lanes 8 i .. 8 i + 7 give the rows of matrix i, 16 bytes each.
LY_FN void load_matrices(uint (&m)[4], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address));
}
LY_FN void load_matrices(uint (&m)[2], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(address));
}
LY_FN void load_transposed(uint (&m)[4], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address));
}
LY_FN void load_transposed(uint (&m)[2], uint address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(address));
}
LY_FN void multiply(float *c, const uint (&a)[4], uint b0, uint b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

} // namespace ly
LY_FN void ly_load_matrices(uint (&m)[4], const half *row) { ly::load_matrices(m, ly::shared_address(row)); }
LY_FN void ly_load_transposed(uint (&m)[4], const half *row) { ly::load_transposed(m, ly::shared_address(row)); }

// Products of warpgroups (wgmma, compute capability 9.0): 64 rows from the registers of four simdgroups, 16 each, by N rows in
// threadgroup memory, swizzled in groups of eight rows of 128 bytes.
template <uint N> struct ly_swizzled { half at[N * 64]; };
template <uint N> LY_FN half *ly_swizzled_at(ly_swizzled<N> &tile, uint row, uint part) {
  return tile.at + row * 64 + (part ^ (row & 7)) * 8;
}
// Copies and stores of this thread become visible to wgmma.
LY_FN void ly_wgmma_see() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
LY_FN void ly_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LY_FN void ly_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
LY_FN void ly_wgmma_before_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
namespace ly {
// What is read of `c` from here on stays behind this place.
template <uint N> LY_FN void settled(float *c) {
#pragma unroll
  for (uint i = 0; i < N / 2; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
} // namespace ly
template <uint N> LY_FN void ly_wgmma_before_last(float *c) {
  ly_wgmma_before_last();
  ly::settled<N>(c);
}
template <uint N> LY_FN void ly_wgmma_all(float *c) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  ly::settled<N>(c);
}
template <uint N> LY_FN void ly_wgmma_end(float *c) {
  ly_wgmma_commit();
  ly_wgmma_all<N>(c);
}
// The accumulators' operands by number and by place, eight more for each sixteen rows.
#define LY_OUT8(c, i) \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define LY_AT16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LY_OUT16(c) LY_OUT8(c, 0)
#define LY_AT32 LY_AT16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LY_OUT32(c) LY_OUT16(c), LY_OUT8(c, 8)
#define LY_AT48 LY_AT32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LY_OUT48(c) LY_OUT32(c), LY_OUT8(c, 16)
#define LY_AT64 LY_AT48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LY_OUT64(c) LY_OUT48(c), LY_OUT8(c, 24)
#define LY_AT80 LY_AT64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LY_OUT80(c) LY_OUT64(c), LY_OUT8(c, 32)
#define LY_AT96 LY_AT80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LY_OUT96(c) LY_OUT80(c), LY_OUT8(c, 40)
#define LY_AT112 LY_AT96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LY_OUT112(c) LY_OUT96(c), LY_OUT8(c, 48)
#define LY_AT128 LY_AT112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LY_OUT128(c) LY_OUT112(c), LY_OUT8(c, 56)
#define LY_AT144 LY_AT128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define LY_OUT144(c) LY_OUT128(c), LY_OUT8(c, 64)
#define LY_AT160 LY_AT144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define LY_OUT160(c) LY_OUT144(c), LY_OUT8(c, 72)
#define LY_AT176 LY_AT160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define LY_OUT176(c) LY_OUT160(c), LY_OUT8(c, 80)
#define LY_AT192 LY_AT176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define LY_OUT192(c) LY_OUT176(c), LY_OUT8(c, 88)
#define LY_AT208 LY_AT192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define LY_OUT208(c) LY_OUT192(c), LY_OUT8(c, 96)
#define LY_AT224 LY_AT208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define LY_OUT224(c) LY_OUT208(c), LY_OUT8(c, 104)
#define LY_AT240 LY_AT224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define LY_OUT240(c) LY_OUT224(c), LY_OUT8(c, 112)
#define LY_AT256 LY_AT240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define LY_OUT256(c) LY_OUT240(c), LY_OUT8(c, 120)
#define LY_WGMMA(n, a0_at, a1_at, a2_at, a3_at, from_at)                                                                   \
  if constexpr (N == n)                                                                                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" LY_AT##n "}, {" a0_at ", " a1_at ", " a2_at ", " a3_at "}, " \
                 from_at ", 1, 1, 1, 0;"                                                                                    \
                 : LY_OUT##n(c) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(from));
namespace ly {
// Where wgmma finds an operand that is swizzled over 128 bytes; groups of eight rows follow each other. `across` is the
// distance, in bytes, of the next 64 columns where rows are inputs, else of no meaning.
LY_FN ulong swizzled_operand(const half *at, uint offset, uint across = 16) {
  return ulong((shared_address(at) + offset & 0x3ffff) >> 4) | ulong(across >> 4) << 16 | 64ul << 32 | 1ul << 62;
}
} // namespace ly
template <uint N>
LY_FN void ly_wgmma(float *c, uint a0, uint a1, uint a2, uint a3, const ly_swizzled<N> &tile, uint step) {
  static_assert(N % 16 == 0 && N <= 256, "wgmma of a multiple of 16 rows, at most 256");
  const ulong from = ly::swizzled_operand(tile.at, 32 * step);
  LY_WGMMA(16, "%8", "%9", "%10", "%11", "%12")
  LY_WGMMA(32, "%16", "%17", "%18", "%19", "%20")
  LY_WGMMA(48, "%24", "%25", "%26", "%27", "%28")
  LY_WGMMA(64, "%32", "%33", "%34", "%35", "%36")
  LY_WGMMA(80, "%40", "%41", "%42", "%43", "%44")
  LY_WGMMA(96, "%48", "%49", "%50", "%51", "%52")
  LY_WGMMA(112, "%56", "%57", "%58", "%59", "%60")
  LY_WGMMA(128, "%64", "%65", "%66", "%67", "%68")
  LY_WGMMA(144, "%72", "%73", "%74", "%75", "%76")
  LY_WGMMA(160, "%80", "%81", "%82", "%83", "%84")
  LY_WGMMA(176, "%88", "%89", "%90", "%91", "%92")
  LY_WGMMA(192, "%96", "%97", "%98", "%99", "%100")
  LY_WGMMA(208, "%104", "%105", "%106", "%107", "%108")
  LY_WGMMA(224, "%112", "%113", "%114", "%115", "%116")
  LY_WGMMA(240, "%120", "%121", "%122", "%123", "%124")
  LY_WGMMA(256, "%128", "%129", "%130", "%131", "%132")
}
template <uint N, uint M>
LY_FN void ly_wgmma_shared(float *c, const ly_swizzled<M> &rows_a, uint first, const ly_swizzled<N> &rows_b, uint step, bool onto) {
  static_assert(N == 64, "wgmma with both operands in threadgroup memory: of 64 rows");
  const ulong a = ly::swizzled_operand(rows_a.at, first * 128 + 32 * step), b = ly::swizzled_operand(rows_b.at, 32 * step);
  asm volatile("{\n.reg .pred onto;\nsetp.ne.u32 onto, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" LY_AT64 "}, %32, %33, onto, 1, 1, 0, 0;\n}"
               : LY_OUT64(c) : "l"(a), "l"(b), "r"(uint(onto)));
}
#define LY_ACROSS(n, a0_at, a1_at, a2_at, a3_at, from_at)                                                                  \
  if constexpr (N == n)                                                                                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" LY_AT##n "}, {" a0_at ", " a1_at ", " a2_at ", " a3_at "}, " \
                 from_at ", 1, 1, 1, 1;"                                                                                    \
                 : LY_OUT##n(c) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(from));
template <uint N, uint ROWS>
LY_FN void ly_wgmma_across(float *c, uint a0, uint a1, uint a2, uint a3, const ly_swizzled<ROWS> *blocks, uint step) {
  static_assert(N == 64 || N == 128 || N == 256, "wgmma across 64, 128 or 256 columns");
  const ulong from = ly::swizzled_operand(blocks->at, 2048 * step, ROWS * 128);
  LY_ACROSS(64, "%32", "%33", "%34", "%35", "%36")
  LY_ACROSS(128, "%64", "%65", "%66", "%67", "%68")
  LY_ACROSS(256, "%128", "%129", "%130", "%131", "%132")
}
#undef LY_ACROSS
#undef LY_WGMMA
#undef LY_AT16
#undef LY_OUT16
#undef LY_AT32
#undef LY_OUT32
#undef LY_AT48
#undef LY_OUT48
#undef LY_AT64
#undef LY_OUT64
#undef LY_AT80
#undef LY_OUT80
#undef LY_AT96
#undef LY_OUT96
#undef LY_AT112
#undef LY_OUT112
#undef LY_AT128
#undef LY_OUT128
#undef LY_AT144
#undef LY_OUT144
#undef LY_AT160
#undef LY_OUT160
#undef LY_AT176
#undef LY_OUT176
#undef LY_AT192
#undef LY_OUT192
#undef LY_AT208
#undef LY_OUT208
#undef LY_AT224
#undef LY_OUT224
#undef LY_AT240
#undef LY_OUT240
#undef LY_AT256
#undef LY_OUT256
#undef LY_OUT8

// Two codes, in bits 0 .. 3 and 16 .. 19, as halfs code * scale + bias, rounded once. 0x6400 is 1024, whose last bit is 1.
LY_FN uint ly_dequantise2(uint codes, uint scale, uint bias) {
  uint two;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(two) : "r"(codes | 0x64006400u), "r"(0x64006400u));
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(two) : "r"(two), "r"(scale), "r"(bias));
  return two;
}

// Byte i of the result is byte `pick >> 4 i & 7` of both words together, those of `high` from 4 on.
LY_FN uint ly_pick_bytes(uint low, uint high, uint pick) { return __byte_perm(low, high, pick); }

// The two codes of byte AT of a word as halfs code * scale + bias, rounded once. The byte stands in both halves, of the upper one
// its upper code counts, which is sixteen times as much there: so is the upper scale made a sixteenth before. As they stand the
// bits are subnormal halfs, code / 2^24, which are multiplied exactly; of the 2^24 the scale has 2^9.
LY_FN uint ly_byte_scale(uint scale) {
  uint two;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(two) : "r"(scale), "r"(0x50006000u));
  return two;
}
template <uint AT> LY_FN uint ly_dequantise_byte(uint word, uint scale, uint bias) {
  uint two = __byte_perm(word, 0u, 0x4040u | AT | AT << 8) & 0x00f0000fu;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(two) : "r"(two), "r"(0x78007800u));
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(two) : "r"(two), "r"(scale), "r"(bias));
  return two;
}

// Through the read-only cache, in the order of the source: the compiler lets other loads sink behind a wait.
LY_FN uint4 ly_load_now(const uint4 *from) {
  uint4 four;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.e[0]), "=r"(four.e[1]), "=r"(four.e[2]), "=r"(four.e[3]) : "l"(__cvta_generic_to_global(from)));
  return four;
}
LY_FN uint2 ly_load_now(const uint2 *from) {
  uint2 two;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(two.e[0]), "=r"(two.e[1]) : "l"(__cvta_generic_to_global(from)));
  return two;
}
LY_FN uint ly_load_now(const uint *from) {
  uint one;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(one) : "l"(__cvta_generic_to_global(from)));
  return one;
}
LY_FN uint ly_load_bits(const bfloat *from) {
  uint one;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(one) : "l"(__cvta_generic_to_global(from)));
  return one;
}

// Brings the line of memory around it to the second-level cache.
LY_FN void ly_prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at))); }

LY_FN void ly_anew(uint &word) { asm volatile("" : "+r"(word)); }
LY_FN void ly_mma(float *c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  const uint a[4] = {a0, a1, a2, a3};
  ly::multiply(c, a, b0, b1);
}

namespace ly {
// tile += a b, a column block of b at a time: KN says that b is [K, N], else [N, K]. Addresses in bytes; the two
// blocks of columns that one load brings are one instruction where N allows.
template <uint K, bool KN, uint M, uint N> LY_FN void tile_mma(ly_tile<M, N> &tile, const half *a, uint lda, const half *b, uint ldb) {
  static_assert(K % 16 == 0, "K is a multiple of 16");
  const uint l = lane();
  const uint from_a = shared_address(a) + 2 * ((l & 15) * lda + (l >> 4) * 8);
  const uint from_b = shared_address(b) + 2 * (KN ? (l & 15) * ldb + (l >> 4) * 8 : ((l & 7) + (l >> 4) * 8) * ldb + (l >> 3 & 1) * 8);
  const uint step_k = 2 * 16 * (KN ? ldb : 1), step_n = 2 * 8 * (KN ? 1 : ldb);
#pragma unroll
  for (uint k = 0; k < K / 16; ++k) {
    uint rows[M / 16][4];
#pragma unroll
    for (uint i = 0; i < M / 16; ++i) load_matrices(rows[i], from_a + 2 * (i * 16 * lda + k * 16));
#pragma unroll
    for (uint j = 0; j < N / 8; j += 2) {
      const uint address = from_b + k * step_k + j * step_n;
      if (j + 1 < N / 8) {
        uint columns[4];
        if (KN) load_transposed(columns, address); else load_matrices(columns, address);
#pragma unroll
        for (uint i = 0; i < M / 16; ++i) {
          multiply(tile.e + (i * (N / 8) + j) * 4, rows[i], columns[0], columns[1]);
          multiply(tile.e + (i * (N / 8) + j + 1) * 4, rows[i], columns[2], columns[3]);
        }
      } else {
        uint columns[2];
        if (KN) load_transposed(columns, address); else load_matrices(columns, address);
#pragma unroll
        for (uint i = 0; i < M / 16; ++i) multiply(tile.e + (i * (N / 8) + j) * 4, rows[i], columns[0], columns[1]);
      }
    }
  }
}
} // namespace ly

template <uint M, uint N> LY_FN void ly_tile_zero(ly_tile<M, N> &tile) {
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) tile.e[i] = 0.0f;
}
template <uint K, uint M, uint N> LY_FN void ly_tile_mma(ly_tile<M, N> &tile, const half *a, uint lda, const half *b, uint ldb) {
  ly::tile_mma<K, false>(tile, a, lda, b, ldb);
}
template <uint K, uint M, uint N> LY_FN void ly_tile_mma_kn(ly_tile<M, N> &tile, const half *a, uint lda, const half *b, uint ldb) {
  ly::tile_mma<K, true>(tile, a, lda, b, ldb);
}
template <uint M, uint N> LY_FN void ly_tile_scale_rows(ly_tile<M, N> &tile, const float *scale) {
  const uint row = ly::lane() / 4;
#pragma unroll
  for (uint i = 0; i < M / 16; ++i) {
    const float upper = scale[i * 16 + row], lower = scale[i * 16 + row + 8];
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) {
      float *c = tile.e + (i * (N / 8) + j) * 4;
      c[0] *= upper, c[1] *= upper, c[2] *= lower, c[3] *= lower;
    }
  }
}
template <uint M, uint N> LY_FN void ly_tile_store(const ly_tile<M, N> &tile, float *out, uint ld) {
  float *const from = out + (ly::lane() / 4) * ld + ly::lane() % 4 * 2;
#pragma unroll
  for (uint i = 0; i < M / 16; ++i)
#pragma unroll
    for (uint j = 0; j < N / 8; ++j)
#pragma unroll
      for (uint below = 0; below < 2; ++below) {
        const float *c = tile.e + (i * (N / 8) + j) * 4 + below * 2;
        float *to = from + (i * 16 + below * 8) * ld + j * 8;
        if (ld % 2 == 0) *(float2 *)to = float2(c[0], c[1]);
        else to[0] = c[0], to[1] = c[1];
      }
}
