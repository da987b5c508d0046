#include "dialect/metal.h"
#include "lib/quantised.h"

struct DequantiseArgs { uint cols, group_shift, units; };

// dequantise: a whole matrix expanded to bfloat in memory, for the comparison with products that dequantise on chip.
// Math     out = scale * code + bias
// Layout   out [rows, cols] bf16. Work: a unit of eight weights a thread.
// Numerics rounded to bfloat; the products round that to half. Bound by bytes: 2.6 a weight.
template <uint BITS>
kernel void dequantise(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                       device const bfloat *biases [[buffer(2)]], device uint4 *out [[buffer(3)]],
                       constant DequantiseArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_at [[thread_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint unit = group.x * simdgroups * 32 + thread_at;
  if (unit < args.units) {
    float code[8];
    unit_codes<BITS>(codes + unit * (BITS / 4), code);
    uint row_units = args.cols / 8, row = unit / row_units, at = row * (row_units >> args.group_shift) + (unit % row_units >> args.group_shift);
    float scale = float(scales[at]), bias = float(biases[at]);
    uint pair[4];
    for (uint i = 0; i < 4; ++i) {
      bfloat low = bfloat(scale * code[2 * i] + bias), high = bfloat(scale * code[2 * i + 1] + bias);
      pair[i] = uint(as_type<ushort>(low)) | (uint(as_type<ushort>(high)) << 16);
    }
    out[unit] = uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}
LY_KERNEL(dequantise_q4, dequantise<4>)
LY_KERNEL(dequantise_q8, dequantise<8>)
