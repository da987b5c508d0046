// cuda_words: every word of the kernel language once, each result written where the test can compare it.

struct TileArgs { uint lda, ldb, ldo; };
struct CountArgs { uint count; };
struct AddArgs { uint count; float factor; };

// Rows of `columns` values, 16 bytes at a time, into rows of `ld`.
inline void fetch(threadgroup half *to, uint ld, device const half *from, uint rows, uint columns, uint lane) {
  uint pieces = columns / 8;
  for (uint i = lane; i < rows * pieces; i += 32)
    ly_copy16(to + i / pieces * ld + i % pieces * 8, from + i / pieces * columns + i % pieces * 8);
}

// out[r] = 2 r (a b^T)[r], or of a b where KN, as the sum of two equal products. out [M, N].
template <uint M, uint N, uint K, bool KN> kernel void
tile(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]], device float *out [[buffer(2)]],
     constant TileArgs &args [[buffer(3)]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup half tile_a[M * (K + 8)];
  threadgroup half tile_b[KN ? K * (N + 8) : N * (K + 8)];
  threadgroup float tile_out[M * (N + 9)];
  threadgroup float scale[M];
  fetch(tile_a, args.lda, a, M, K, lane);
  ly_copy_commit();
  fetch(tile_b, args.ldb, b, KN ? K : N, KN ? N : K, lane);
  ly_copy_commit();
  for (uint r = lane; r < M; r += 32) scale[r] = float(r);
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile<M, N> sum;
  ly_tile_zero(sum);
  for (uint twice = 0; twice < 2; ++twice) {
    if (KN) ly_tile_mma_kn<K>(sum, tile_a, args.lda, tile_b, args.ldb);
    else ly_tile_mma<K>(sum, tile_a, args.lda, tile_b, args.ldb);
  }
  ly_tile_scale_rows(sum, scale);
  ly_tile_store(sum, tile_out, args.ldo);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < M * N; i += 32) out[i] = tile_out[i / N * args.ldo + i % N];
}
LY_KERNEL(tile_16_8_16, tile<16, 8, 16, false>)
LY_KERNEL(tile_32_24_48, tile<32, 24, 48, false>)
LY_KERNEL(tile_64_32_64, tile<64, 32, 64, false>)
LY_KERNEL(tile_kn_16_8_16, tile<16, 8, 16, true>)
LY_KERNEL(tile_kn_32_24_48, tile<32, 24, 48, true>)
LY_KERNEL(tile_kn_64_32_64, tile<64, 32, 64, true>)

// What warpgroups multiply with both operands in threadgroup memory, and with the second lying across. Of four simdgroups.
// scores [64, 64] = a[row0 ..] b^T, twice where args.count is not 0; out [64, N] = a[row0 ..] v. a [128, 64], b [64, 64],
// v [64, N].
template <uint N> kernel void warpgroup_words(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]],
                                              device const half *v [[buffer(2)]], device float *scores [[buffer(3)]],
                                              device float *out [[buffer(4)]], constant CountArgs &args [[buffer(5)]],
                                              uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                              uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  threadgroup ly_swizzled<128> rows_a[1];
  threadgroup ly_swizzled<64> rows_b[1];
  threadgroup ly_swizzled<64> blocks[N / 64];
  for (uint i = thread_at; i < 128 * 8; i += 128) ly_copy16(ly_swizzled_at(rows_a[0], i / 8, i % 8), a + i * 8);
  for (uint i = thread_at; i < 64 * 8; i += 128) ly_copy16(ly_swizzled_at(rows_b[0], i / 8, i % 8), b + i * 8);
  for (uint i = thread_at; i < 64 * (N / 8); i += 128) {
    uint row = i / (N / 8), part = i % (N / 8);
    ly_copy16(ly_swizzled_at(blocks[part / 8], row, part % 8), v + i * 8);
  }
  ly_copy_commit();
  ly_copy_wait<0>();
  ly_wgmma_see();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float s[32], c[N / 2];
  for (uint i = 0; i < 32; ++i) s[i] = 1000.0f;
#pragma unroll
  for (uint i = 0; i < N / 2; ++i) c[i] = 0.0f;
  uint row0 = 64, g = lane / 4, t = lane % 4, p[16];
  ly_wgmma_begin();
#pragma unroll
  for (uint i = 0; i < 4; ++i) ly_wgmma_shared<64>(s, rows_a[0], row0, rows_b[0], i, i > 0);
  if (args.count > 0)
#pragma unroll
    for (uint i = 0; i < 4; ++i) ly_wgmma_shared<64>(s, rows_a[0], row0, rows_b[0], i, true);
  ly_wgmma_end<64>(s);
#pragma unroll
  for (uint i = 0; i < 16; ++i) {
    uint row = row0 + simdgroup_at * 16 + g + i % 2 * 8, column = i / 4 * 16 + i % 4 / 2 * 8 + 2 * t;
    p[i] = *(device const uint *)(a + row * 64 + column);
  }
  ly_wgmma_begin();
#pragma unroll
  for (uint i = 0; i < 4; ++i) ly_wgmma_across<N>(c, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], blocks, i);
  ly_wgmma_end<N>(c);
#pragma unroll
  for (uint i = 0; i < 32; ++i) scores[(simdgroup_at * 16 + g + i % 4 / 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2] = s[i];
#pragma unroll
  for (uint i = 0; i < N / 2; ++i) out[(simdgroup_at * 16 + g + i % 4 / 2 * 8) * N + i / 4 * 8 + 2 * t + i % 2] = c[i];
}
LY_KERNEL(warpgroup_words_64, warpgroup_words<64>)
LY_KERNEL(warpgroup_words_128, warpgroup_words<128>)

// Row w of each output is word w for 32 lanes.
kernel void simdgroup_words(device const float *x [[buffer(0)]], device const uint *n [[buffer(1)]], device float *floats [[buffer(2)]],
                            device uint *numbers [[buffer(3)]], uint lane [[thread_index_in_simdgroup]]) {
  float v = x[lane];
  uint u = n[lane];
  float2 pair = simd_sum(float2(v, 2.0f * v));
  floats[lane] = simd_sum(v);
  floats[32 + lane] = simd_max(v);
  floats[64 + lane] = simd_min(v);
  floats[96 + lane] = simd_prefix_exclusive_sum(v);
  floats[128 + lane] = simd_shuffle(v, ushort((lane * 7) % 32));
  floats[160 + lane] = simd_shuffle_xor(v, ushort(5));
  floats[192 + lane] = simd_broadcast(v, ushort(9));
  floats[224 + lane] = pair.x + pair.y;
  uint up = simd_shuffle_up(u, ushort(3));
  uint down = simd_shuffle_down(u, ushort(3));
  numbers[lane] = simd_sum(u);
  numbers[32 + lane] = simd_max(u);
  numbers[64 + lane] = simd_min(u);
  numbers[96 + lane] = simd_prefix_exclusive_sum(u);
  numbers[128 + lane] = lane < 3 ? 0u : up;
  numbers[160 + lane] = lane > 28 ? 0u : down;
  numbers[192 + lane] = uint(simd_shuffle_xor(ushort(u), ushort(1)));
}

// Row w of out is function w of x, `count` values each.
kernel void mathematics(device const float *x [[buffer(0)]], device float *out [[buffer(1)]], constant CountArgs &args [[buffer(2)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * 256 + thread_index;
  if (i < args.count) {
    float v = x[i];
    float magnitude = abs(v);
    float4 four = float4(v, 1.0f, 2.0f, 3.0f);
    out[i] = exp(v);
    out[args.count + i] = log(magnitude);
    out[2 * args.count + i] = sqrt(magnitude);
    out[3 * args.count + i] = rsqrt(magnitude);
    out[4 * args.count + i] = 3.0f / v;
    out[5 * args.count + i] = float(bfloat(v));
    out[6 * args.count + i] = float(half(v));
    out[7 * args.count + i] = clamp(v, -1.0f, select(1.0f, 2.0f, v > 10.0f));
    out[9 * args.count + i] = ly_exp2(v);
    out[8 * args.count + i] = dot(four, float4(2.0f)) + max(four.x, four.y);
  }
}

// Counts the values by their last four bits: in threadgroup memory, then together.
kernel void histogram(device const uint *x [[buffer(0)]], device atomic_uint *counts [[buffer(1)]], constant CountArgs &args [[buffer(2)]],
                      uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                      uint thread_index [[thread_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup atomic_uint part[16];
  if (thread_index < 16) atomic_store_explicit(part + thread_index, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = group.x * simdgroups * 32 + thread_index; i < args.count; i += groups.x * simdgroups * 32)
    atomic_fetch_add_explicit(part + x[i] % 16, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 16)
    atomic_fetch_add_explicit(counts + thread_index, atomic_load_explicit(part + thread_index, memory_order_relaxed), memory_order_relaxed);
}

// The codes of the four bytes of a word as 3 code - 5, two a word; then bytes of two words, and numbers beyond the range of halfs.
kernel void codes(device const uint *x [[buffer(0)]], device uint *out [[buffer(1)]], uint lane [[thread_index_in_threadgroup]]) {
  uint word = x[lane], scale = ly_byte_scale(ly_pack2(3.0f, 3.0f)), bias = ly_pack2(-5.0f, -5.0f);
  out[lane] = ly_dequantise_byte<0>(word, scale, bias);
  out[32 + lane] = ly_dequantise_byte<1>(word, scale, bias);
  out[64 + lane] = ly_dequantise_byte<2>(word, scale, bias);
  out[96 + lane] = ly_dequantise_byte<3>(word, scale, bias);
  out[128 + lane] = ly_pick_bytes(word, x[31 - lane], 0x3715u);
  ly_prefetch(x);
  out[160 + lane] = ly_pack2_finite(float(word >> lane), -float(word));
}

// to = a + b * factor
kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]], device float *to [[buffer(2)]],
                constant AddArgs &args [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
                uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  uint i = group.x * 256 + simdgroup * 32 + lane;
  if (i < args.count) to[i] = fma(b[i], args.factor, a[i]);
}

// x = x * x, in place
kernel void square(device float *x [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * 256 + thread_index;
  x[i] = x[i] * x[i];
}

// Writes where no buffer is.
kernel void stray(device float *x [[buffer(0)]], constant CountArgs &args [[buffer(1)]], uint lane [[thread_index_in_threadgroup]]) {
  x[ulong(args.count) * 1073741824 + lane] = 1.0f;
}
