// The kernel language's words for the simulator: what a translated kernel file includes. The mechanism below them is in
// crates/lily-gpu/sim: start with lanes.h there.
#pragma once
#include "lanes.h"
#include "tile.h"

// ---- Barriers ------------------------------------------------------------------------------------------------------
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_device_and_threadgroup = 3 };

LY_RUNTIME void threadgroup_barrier(mem_flags flags, LY_SITE) { ly::barrier(uint(flags), LY_PASS); }
LY_RUNTIME void simdgroup_barrier(mem_flags flags, LY_SITE) {
  if (!ly::arrive(LY_PASS)) return;
  uint *epoch = ly::G->current->epoch;
  epoch[0] += uint(flags) & 1;
  epoch[1] += uint(flags) >> 1 & 1;
}

// ---- Simdgroup operations ------------------------------------------------------------------------------------------
template <class T> LY_RUNTIME T simd_sum(T value, LY_SITE) {
  return ly::reduce(value, [](T a, T b) { return a + b; }, LY_PASS);
}
template <class T> LY_RUNTIME T simd_max(T value, LY_SITE) {
  return ly::reduce(value, [](T a, T b) { return a > b ? a : b; }, LY_PASS);
}
template <class T> LY_RUNTIME T simd_min(T value, LY_SITE) {
  return ly::reduce(value, [](T a, T b) { return a < b ? a : b; }, LY_PASS);
}
template <class T> LY_RUNTIME T simd_shuffle(T value, uint from, LY_SITE) { return ly::pick(value, from, LY_PASS); }
template <class T> LY_RUNTIME T simd_broadcast(T value, uint from, LY_SITE) { return ly::pick(value, from, LY_PASS); }
template <class T> LY_RUNTIME T simd_shuffle_xor(T value, uint mask, LY_SITE) {
  return ly::pick(value, ly::lane() ^ mask, LY_PASS);
}
// Lanes that the shift leaves without a source keep their own value: Metal leaves it undefined.
template <class T> LY_RUNTIME T simd_shuffle_down(T value, uint by, LY_SITE) {
  uint lane = ly::lane();
  return ly::pick(value, lane + by < 32 ? lane + by : lane, LY_PASS);
}
template <class T> LY_RUNTIME T simd_shuffle_up(T value, uint by, LY_SITE) {
  uint lane = ly::lane();
  return ly::pick(value, lane >= by ? lane - by : lane, LY_PASS);
}
template <class T> LY_RUNTIME T simd_prefix_exclusive_sum(T value, LY_SITE) {
  auto scan = [](T *box) {
    T sum = T(0);
    for (uint i = 0; i < 32; ++i) {
      T one = box[i];
      box[i] = sum;
      sum = sum + one;
    }
  };
  return ly::exchange(value, scan, LY_PASS)[ly::lane()];
}

// ---- Atomics -------------------------------------------------------------------------------------------------------
enum memory_order { memory_order_relaxed };
struct atomic_uint {
  uint value;
};
#ifdef LY_CHECKED
#define LY_ATOMIC(write, read) ly::touch_atomic(at, write, read, LY_PASS)
#else
#define LY_ATOMIC(write, read) (void)file, (void)line
#endif
LY_RUNTIME uint atomic_fetch_add_explicit(atomic_uint *at, uint value, memory_order, LY_SITE) {
  LY_ATOMIC(true, true);
  return __atomic_fetch_add(&at->value, value, __ATOMIC_RELAXED);
}
LY_RUNTIME uint atomic_load_explicit(const atomic_uint *at, memory_order, LY_SITE) {
  LY_ATOMIC(false, true);
  return __atomic_load_n(&at->value, __ATOMIC_RELAXED);
}
LY_RUNTIME void atomic_store_explicit(atomic_uint *at, uint value, memory_order, LY_SITE) {
  LY_ATOMIC(true, false);
  __atomic_store_n(&at->value, value, __ATOMIC_RELAXED);
}
#undef LY_ATOMIC

// ---- Copies from device to threadgroup memory: at once, or when waited for in the checked build ----------------------
LY_RUNTIME void ly_copy16(void *to, const void *from, LY_SITE) {
#ifdef LY_CHECKED
  ly::copy_queue(to, from, LY_PASS);
#else
  (void)file, (void)line;
  memcpy(__builtin_assume_aligned(to, 16), __builtin_assume_aligned(from, 16), 16);
#endif
}
LY_RUNTIME void ly_copy_commit() {
#ifdef LY_CHECKED
  ly::copy_commit();
#endif
}
// Launches that depend on each other never overlap here.
#define ly_wait_previous(...)
#define ly_settled(...)
#define ly_anew(word)
LY_FN void ly_prefetch(const void *) {}
template <uint THREADS, uint THREADGROUPS> LY_FN void ly_resident() {}
template <uint KIB> LY_FN void ly_threadgroup_kib() {}
template <class T> LY_FN T ly_load_now(const T *from) { return *from; }
LY_FN uint ly_load_bits(const bfloat *from) { return as_type<ushort>(*from); }
LY_RUNTIME void ly_release_next() {}
template <uint N> LY_RUNTIME void ly_copy_wait() {
#ifdef LY_CHECKED
  ly::copy_wait(N);
#endif
}

// ---- Arithmetic ----------------------------------------------------------------------------------------------------
using std::abs;
using std::exp;
using std::fabs;
using std::floor;
using std::log;
using std::sqrt;

LY_FN float ly_exp2(float x) { return std::exp2(x); }
LY_FN float rsqrt(float x) { return 1.0f / std::sqrt(x); }
LY_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <class T> LY_FN T max(T a, T b) { return a > b ? a : b; }
template <class T> LY_FN T min(T a, T b) { return a < b ? a : b; }
template <class T> LY_FN T clamp(T value, T low, T high) { return min(max(value, low), high); }
template <class T> LY_FN T select(T otherwise, T value, bool condition) { return condition ? value : otherwise; }

namespace ly {
#define LY_EACH(word)                                                    \
  template <int N> LY_FN vec<float, N> word(vec<float, N> a) {           \
    for (int i = 0; i < N; ++i) a.e[i] = ::word(a.e[i]);                 \
    return a;                                                            \
  }
LY_EACH(abs)
LY_EACH(exp)
LY_EACH(log)
LY_EACH(sqrt)
LY_EACH(rsqrt)
#undef LY_EACH
template <int N> LY_FN vec<float, N> fma(vec<float, N> a, vec<float, N> b, vec<float, N> c) {
  for (int i = 0; i < N; ++i) c.e[i] = ::fma(a.e[i], b.e[i], c.e[i]);
  return c;
}
template <class T, int N> LY_FN vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; ++i) a.e[i] = ::max(a.e[i], b.e[i]);
  return a;
}
template <class T, int N> LY_FN vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; ++i) a.e[i] = ::min(a.e[i], b.e[i]);
  return a;
}
}  // namespace ly

LY_FN uint ly_pack2(float low, float high) { return uint(ly::bits<ushort>(half(low))) | uint(ly::bits<ushort>(half(high))) << 16; }
LY_FN uint ly_pack2_finite(float low, float high) {
  auto finite = [](float value) { return value < -65504.0f ? -65504.0f : value > 65504.0f ? 65504.0f : value; };
  return ly_pack2(finite(low), finite(high));
}
