#include "dialect/metal.h"
#include "lib/rows.h"

// Kernels that use every word of the language once, for the simulator's own tests.

struct SumArgs { uint width; float scale; };

template <uint STEP, bool SQUARED>
kernel void row_sum(device const float *x [[buffer(0)]], device float *out [[buffer(1)]],
                    constant SumArgs &args [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                    uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float parts[32];
  float sum = 0.0f;
  for (uint i = thread_at * STEP; i < args.width; i += simdgroups * 32 * STEP)
    for (uint j = 0; j < STEP; ++j) {
      float value = x[group.x * args.width + i + j];
      sum += SQUARED ? value * value : value;
    }
  sum = threadgroup_sum(sum, parts, lane, simdgroup_at, simdgroups);
  if (thread_at == 0) out[group.x] = sum * args.scale;
}
LY_KERNEL(row_sum_1, row_sum<1, false>)
LY_KERNEL(row_sum_4_squared, row_sum<4, true>);

// out [32, 24] = scale[row] * (a [32, 32] b [24, 32]^T) + a c [32, 24], by one simdgroup.
struct TileArgs { uint lda, ldb, ldc; };
kernel void tile(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]], device const half *c [[buffer(2)]],
                 device const float *scale [[buffer(3)]], device float *out [[buffer(4)]], constant TileArgs &args [[buffer(5)]],
                 uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half tile_a[32 * 40];
  threadgroup half tile_b[24 * 40];
  threadgroup half tile_c[32 * 24];
  threadgroup float scales[32];
  threadgroup float result[32 * 24];
  for (uint i = lane; i < 32 * 4; i += 32) ly_copy16(tile_a + i / 4 * 40 + i % 4 * 8, a + i / 4 * args.lda + i % 4 * 8);
  for (uint i = lane; i < 24 * 4; i += 32) ly_copy16(tile_b + i / 4 * 40 + i % 4 * 8, b + i / 4 * args.ldb + i % 4 * 8);
  ly_copy_commit();
  for (uint i = lane; i < 32 * 3; i += 32) ly_copy16(tile_c + i * 8, c + i / 3 * args.ldc + i % 3 * 8);
  ly_copy_commit();
  scales[lane] = scale[lane];
  ly_tile<32, 24> sum;
  ly_tile_zero(sum);
  ly_copy_wait<1>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile_mma<32>(sum, tile_a, 40, tile_b, 40);
  ly_tile_scale_rows(sum, scales);
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile_mma_kn<32>(sum, tile_a, 40, tile_c, 24);
  ly_tile_store(sum, result, 24);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 32 * 24; i += 32) out[i] = result[i];
}

// Every simdgroup operation: out [operation, lane].
kernel void lanes(device const uint *x [[buffer(0)]], device uint *out [[buffer(1)]], device atomic_uint *count [[buffer(2)]],
                  uint lane [[thread_index_in_simdgroup]], uint3 group [[threadgroup_position_in_grid]],
                  uint3 grid [[threadgroups_per_grid]]) {
  uint value = x[lane];
  device uint *to = out + (group.y * grid.x + group.x) * 32 * 10 + lane;
  to[0 * 32] = simd_sum(value);
  to[1 * 32] = simd_max(value);
  to[2 * 32] = simd_min(value);
  to[3 * 32] = simd_shuffle(value, (lane * 5) & 31);
  to[4 * 32] = simd_shuffle_xor(value, 12);
  to[5 * 32] = simd_shuffle_up(value, 3);
  to[6 * 32] = simd_shuffle_down(value, 4);
  to[7 * 32] = simd_broadcast(value, 7);
  to[8 * 32] = simd_prefix_exclusive_sum(value);
  to[9 * 32] = ly_pack2(as_type<float>(value), 1.0f);
  atomic_fetch_add_explicit(&count[group.x & 1], value, memory_order_relaxed);
}
