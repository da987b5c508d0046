#include "dialect/metal.h"

// Kernels that are each wrong in one way. The checked build must name the line that ends in `fault:` and say what
// follows there, or say what follows `fault somewhere:`; one mark of a kernel is enough.
// x and y hold 128 floats, c two counters, w four bytes a thread; two threadgroups of 64 threads run.

struct FaultArgs { uint three; };

kernel void no_barrier(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                       uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  t[at] = float(at);
  y[group.x * 64 + at] = t[63 - at];  // fault: read of t at byte
}

kernel void lockstep(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                     uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  t[at] = float(at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = t[at ^ 1];  // fault: races with a write by lane
  t[at] = value + 1.0f;     // fault: races with a read by lane
  y[group.x * 64 + at] = t[at];
}

kernel void simdgroup_barrier_only(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                   uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  t[at] = float(at);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[63 - at];  // fault: read of t at byte
}

kernel void wrong_flags(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  t[at] = float(at);
  threadgroup_barrier(mem_flags::mem_device);
  y[group.x * 64 + at] = t[63 - at];  // fault: races with a write by lane
}

kernel void plain_histogram(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                            uint at [[thread_index_in_threadgroup]]) {
  threadgroup uint t[4];
  if (at < 4) t[at] = 0u;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  t[at & 3] += 1u;  // fault: by lane
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = float(t[at & 3]);
}

kernel void barrier_of_some(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                            uint at [[thread_index_in_threadgroup]]) {
  if (at < 16)
    threadgroup_barrier(mem_flags::mem_threadgroup);  // fault: at the barrier
  y[group.x * 64 + at] = 1.0f;
}

kernel void two_barriers(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                         uint at [[thread_index_in_threadgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  if (simdgroup_at == 0)
    threadgroup_barrier(mem_flags::mem_threadgroup);  // fault: divergent threadgroup barrier
  else
    threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = 1.0f;
}

kernel void simdgroup_returns(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                              uint at [[thread_index_in_threadgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  y[group.x * 64 + at] = 0.0f;
  if (simdgroup_at == 1) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // fault: divergent threadgroup barrier
}

kernel void sum_of_some(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  float value = 1.0f;
  if (lane < 8) value = simd_sum(value);  // fault: divergent
  y[group.x * 64 + at] = value;
}

kernel void shuffle_range(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                          uint at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  y[group.x * 64 + at] = simd_shuffle(float(lane), ushort(lane + 1));  // fault: shuffle from lane 32
}

kernel void unset_threadgroup(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                              uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  if (at < 60) t[at] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[63 - at];  // fault: which nothing has written
}

kernel void threadgroup_index(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                              uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[32];
  t[at] = 1.0f;  // fault: array index out of range
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[at];
}

kernel void threadgroup_pointer(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[32];
  threadgroup float *p = t;
  p[at] = 1.0f;  // fault: of t, which has 128 bytes
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = p[at];
}

kernel void past_end(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                     uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  y[group.x * 64 + at] = x[group.x * 64 + at + 1];  // fault: read of byte 512 of x
}

kernel void before_start(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                         uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  device const float *p = x + group.x * 64 + at;
  y[group.x * 64 + at] = p[-1];  // fault: read of byte -4 of x
}

kernel void misaligned(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                       uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  float4 value = *(device const float4 *)(x + (at & 15) + 1);  // fault: misaligned
  y[group.x * 64 + at] = value.x + value.w;
}

kernel void writes_input(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                         uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  ((device float *)x)[group.x * 64 + at] = 0.0f;  // fault: write to x, which is bound read-only
  y[group.x * 64 + at] = 0.0f;
}

kernel void groups_collide(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                           uint at [[thread_index_in_threadgroup]]) {
  y[at] = float(group.x);  // fault: races with a write by another threadgroup
}

kernel void plain_beside_atomic(device float *y [[buffer(0)]], device atomic_uint *c [[buffer(1)]],
                                uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  atomic_fetch_add_explicit(&c[0], 1u, memory_order_relaxed);  // fault: races with a read by lane
  y[group.x * 64 + at] = float(((device uint *)c)[0]);         // fault: races with a write by lane
}

kernel void unset_device(device float *z [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                         uint at [[thread_index_in_threadgroup]]) {
  z[group.x * 64 + at] += 1.0f;  // fault: which nothing has written
}

kernel void wide_shift(device float *y [[buffer(0)]], constant FaultArgs &args [[buffer(1)]],
                       uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  y[group.x * 64 + at] = float((at + 1u) >> (args.three + 29u));  // fault: shift by more than the width
}

kernel void divide_by_zero(device float *y [[buffer(0)]], constant FaultArgs &args [[buffer(1)]],
                           uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  y[group.x * 64 + at] = float(at / (args.three - 3u));  // fault: division by zero
}

kernel void float_to_int(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                         uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  y[group.x * 64 + at] = float(int(x[at] * 1e20f));  // fault: float does not fit the integer type
}

kernel void endless(device float *y [[buffer(0)]], device atomic_uint *c [[buffer(1)]],
                    uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  if (group.x == 0) while (atomic_load_explicit(&c[1], memory_order_relaxed) == 0u) {}  // fault: still running after 1 s
  y[group.x * 64 + at] = 1.0f;
}

kernel void deep_stack(device float *y [[buffer(0)]], constant FaultArgs &args [[buffer(1)]],
                       uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  float large[20000];
  for (uint i = 0; i < 20000; ++i) large[i] = float(i * args.three);
  y[group.x * 64 + at] = large[at * args.three];  // fault somewhere: stack overflow
}

// Copies and tiles.

kernel void copy_not_waited(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                            uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  if (at < 16) ly_copy16(t + at * 4, x + at * 4);
  ly_copy_commit();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[at];  // fault somewhere: values
}

kernel void copy_not_committed(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                               uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  if (at < 16) ly_copy16(t + at * 4, x + at * 4);
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[at];  // fault somewhere: values
}

kernel void copy_without_barrier(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  if (at < 16) ly_copy16(t + at * 4, x + at * 4);
  ly_copy_commit();
  ly_copy_wait<0>();
  y[group.x * 64 + at] = t[at];  // fault: of t at byte
}

kernel void copy_over_readers(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                              uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  t[at] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = t[63 - at];                        // fault: races with a write by lane
  if (at < 16) ly_copy16(t + at * 4, x + at * 4);  // fault: races with a read by lane
  ly_copy_commit();
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = value + t[at];
}

kernel void copy_misaligned(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                            uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float t[64];
  if (at < 15) ly_copy16(t + at * 4, x + at * 4 + 1);  // fault: misaligned 16-byte read of x
  ly_copy_commit();
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = t[at % 60];
}

kernel void tile_without_barrier(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                 uint at [[thread_index_in_threadgroup]]) {
  threadgroup half a[16 * 16];
  threadgroup float out[2][16 * 8];
  for (uint i = at; i < 256; i += 64) a[i] = half(1.0f);
  ly_tile<16, 8> tile;
  ly_tile_zero(tile);
  ly_tile_mma<16>(tile, a, 16, a, 16);  // fault: read of a at byte
  ly_tile_store(tile, out[at / 32], 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = out[0][at];
}

kernel void tile_stride(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint at [[thread_index_in_threadgroup]]) {
  threadgroup half a[16 * 20];
  threadgroup float out[2][16 * 8];
  for (uint i = at; i < 320; i += 64) a[i] = half(1.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile<16, 8> tile;
  ly_tile_zero(tile);
  ly_tile_mma<16>(tile, a, 20, a, 20);  // fault: rows of 20 values
  ly_tile_store(tile, out[at / 32], 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = out[0][at];
}

kernel void tiles_store_one_place(device float *y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                                  uint at [[thread_index_in_threadgroup]]) {
  threadgroup float out[16 * 8];
  ly_tile<16, 8> tile;
  ly_tile_zero(tile);
  ly_tile_store(tile, out, 8);  // fault: races with a write by lane
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + at] = out[at];
}

// Without a fault.

kernel void add_one(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  y[group.x * 64 + at] = x[group.x * 64 + at] + 1.0f;
}

kernel void unset_local(device float *y [[buffer(0)]], constant FaultArgs &args [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  float sums[4];
  for (uint i = 0; i < args.three; ++i) sums[i & 3] += 1.0f;  // fault somewhere: values
  y[group.x * 64 + at] = sums[at & 3];
}
