#include "dialect/metal.h"
#include "lib/operand.h"

constant uint NORM_KEPT = 4;

struct NormArgs { uint hidden, gathers, narrow; float eps; };

// norm: RMS norm of rows of the residual stream.
// Math     out = x * rsqrt(mean(x^2) + eps) * gain
// Layout   x [rows, hidden] f32; out [rows, hidden] operands, see lib/operand.h; `map` names the rows to take where args.gathers is 1.
// Work     a threadgroup a row; a thread every simdgroups * 32nd four of values, of which it keeps the first NORM_KEPT.
// Numerics f32, rounded once at the end. Bound by bytes.
kernel void norm(device const float *x [[buffer(0)]], device const float *gain [[buffer(1)]],
                 device const uint *map [[buffer(2)]], device float *out [[buffer(3)]], constant NormArgs &args [[buffer(4)]],
                 uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                 uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float parts[32];
  uint row = args.gathers != 0 ? map[group.x] : group.x;
  device const float4 *from = (device const float4 *)(x + row * args.hidden);
  uint fours = args.hidden / 4, threads = simdgroups * 32;
  float4 kept[NORM_KEPT];
  float sum = 0.0f;
#pragma unroll
  for (uint n = 0; n < NORM_KEPT; ++n)
    kept[n] = thread_at + n * threads < fours ? from[thread_at + n * threads] : float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (uint n = 0; n < NORM_KEPT; ++n) sum += dot(kept[n], kept[n]);
  for (uint i = thread_at + NORM_KEPT * threads; i < fours; i += threads) sum += dot(from[i], from[i]);
  sum = simd_sum(sum);
  if (lane == 0) parts[simdgroup_at] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) total += parts[i];
  float scale = rsqrt(total / float(args.hidden) + args.eps);
#pragma unroll
  for (uint n = 0; n < NORM_KEPT; ++n) {
    uint i = thread_at + n * threads;
    if (i < fours) store_operands(out, group.x * args.hidden + i * 4, kept[n] * scale * ((device const float4 *)gain)[i], args.narrow);
  }
  for (uint i = thread_at + NORM_KEPT * threads; i < fours; i += threads)
    store_operands(out, group.x * args.hidden + i * 4, from[i] * scale * ((device const float4 *)gain)[i], args.narrow);
}
