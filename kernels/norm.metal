#include "dialect/metal.h"
#include "lib/operand.h"

struct NormArgs { uint hidden, gathers, narrow; float eps; };

// norm: RMS norm of rows of the residual stream.
// Math     out = x * rsqrt(mean(x^2) + eps) * gain
// Layout   x [rows, hidden] f32; out [rows, hidden] operands, see lib/operand.h; `map` names the rows to take where args.gathers is 1.
// Work     a threadgroup a row; a thread every simdgroups * 32nd value.
// Numerics f32, rounded once at the end. Bound by bytes.
kernel void norm(device const float *x [[buffer(0)]], device const float *gain [[buffer(1)]],
                 device const uint *map [[buffer(2)]], device float *out [[buffer(3)]], constant NormArgs &args [[buffer(4)]],
                 uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                 uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float parts[32];
  uint row = args.gathers != 0 ? map[group.x] : group.x;
  device const float *from = x + row * args.hidden;
  float sum = 0.0f;
  for (uint i = thread_at; i < args.hidden; i += simdgroups * 32) sum += from[i] * from[i];
  sum = simd_sum(sum);
  if (lane == 0) parts[simdgroup_at] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < simdgroups; ++i) total += parts[i];
  float scale = rsqrt(total / float(args.hidden) + args.eps);
  for (uint i = thread_at; i < args.hidden; i += simdgroups * 32)
    store_operand(out, group.x * args.hidden + i, from[i] * scale * gain[i], args.narrow);
}
