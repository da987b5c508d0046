#include "dialect/metal.h"
#include "lib/halves.h"

struct HalveArgs { uint cols, x_stride; };

// halve: inputs of a product in the order in which tensor cores take them, where who made them has not written that.
// Math     out = x in two halves
// Layout   x [rows, x_stride] f32; out [rows, cols], see lib/halves.h.
// Work     a thread an input. Grid: (inputs / threads, rows).
// Numerics 22 bits. Bound by launch.
template <uint BITS>
kernel void halve(device const float *x [[buffer(0)]], device float *out [[buffer(1)]], constant HalveArgs &args [[buffer(2)]],
                  uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint at = group.x * simdgroups * 32 + thread_at, row = group.y;
  if (at < args.cols) halves_store<BITS>(out + row * args.cols, at, x[row * args.x_stride + at]);
}
LY_KERNEL(halve_q4, halve<4>)
LY_KERNEL(halve_q8, halve<8>)
