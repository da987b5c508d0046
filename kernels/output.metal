#include "dialect/metal.h"
#include "lib/quantised.h"

struct OutputArgs { uint cols, group_shift, batch, x_stride, rows; };   // inputs; see lib/quantised.h; rows of x; outputs

// output: the mixer's output projection of a few rows, added to the residual stream.
// Math     residual[r] += W x[r]
// Layout   x [batch, x_stride] f32; residual [batch, rows] f32; next [batch, rows] f32; sums [batch, grid.x] f32.
// Work     a simdgroup makes two outputs of ROWS rows, as in project. CHAIN also begins the next norm, see lib/chain.h.
//          Grid: (output tiles, row tiles).
// Numerics as project. Bound by weight bytes.
template <uint BITS, uint ROWS, bool CHAIN>
kernel void output(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                   device const bfloat *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                   device const float *gain [[buffer(4)]], device float *residual [[buffer(5)]],
                   device float *next [[buffer(6)]], device float *sums [[buffer(7)]], constant OutputArgs &args [[buffer(8)]],
                   uint3 group [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
                   uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float squares[32 * ROWS];
  uint first = (group.x * simdgroups + simdgroup_at) * 2, row0 = group.y * ROWS;
  uint units = args.cols / 8, groups = units >> args.group_shift;
  float acc[2][ROWS];
  for (uint r = 0; r < ROWS; ++r) {
    acc[0][r] = 0.0f;
    acc[1][r] = 0.0f;
  }
  for (uint unit = lane; unit < units; unit += 32) {
    float value[ROWS][8], total[ROWS];
    for (uint r = 0; r < ROWS; ++r) {
      unit_activations(x + min(row0 + r, args.batch - 1) * args.x_stride + unit * 8, value[r]);
      total[r] = 0.0f;
      for (uint i = 0; i < 8; ++i) total[r] += value[r][i];
    }
    for (uint n = 0; n < 2; ++n) {
      uint row = min(first + n, args.rows - 1);
      float code[8], scale = 1.0f, bias = 0.0f;
      unit_codes<BITS>(codes + (row * units + unit) * (BITS / 4), code);
      if (BITS < 16) {
        scale = float(scales[row * groups + (unit >> args.group_shift)]);
        bias = float(biases[row * groups + (unit >> args.group_shift)]);
      }
      for (uint r = 0; r < ROWS; ++r) {
        float sum = 0.0f;
        for (uint i = 0; i < 8; ++i) sum += code[i] * value[r][i];
        acc[n][r] += scale * sum + bias * total[r];
      }
    }
  }
  for (uint r = 0; r < ROWS; ++r) {
    float square = 0.0f;
    for (uint n = 0; n < 2; ++n) {
      float sum = simd_sum(acc[n][r]);
      bool inside = first + n < args.rows && row0 + r < args.batch;
      if (lane == n && inside) {
        uint at = (row0 + r) * args.rows + first + n;
        float value = residual[at] + sum;
        residual[at] = value;
        if (CHAIN) {
          next[at] = value * gain[first + n];
          square = value * value;
        }
      }
    }
    if (CHAIN) {
      square = simd_sum(square);
      if (lane == 0) squares[simdgroup_at * ROWS + r] = square;
    }
  }
  if (CHAIN) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at < ROWS && row0 + thread_at < args.batch) {
      float total = 0.0f;
      for (uint i = 0; i < simdgroups; ++i) total += squares[i * ROWS + thread_at];
      sums[(row0 + thread_at) * grid.x + group.x] = total;
    }
  }
}
LY_KERNEL(output_q4_1, output<4, 1, false>)
LY_KERNEL(output_q4_2, output<4, 2, false>)
LY_KERNEL(output_q4_4, output<4, 4, false>)
LY_KERNEL(output_q4_8, output<4, 8, false>)
LY_KERNEL(output_q8_1, output<8, 1, false>)
LY_KERNEL(output_q8_2, output<8, 2, false>)
LY_KERNEL(output_q8_4, output<8, 4, false>)
LY_KERNEL(output_q8_8, output<8, 8, false>)
LY_KERNEL(output_b16_1, output<16, 1, false>)
LY_KERNEL(output_b16_2, output<16, 2, false>)
LY_KERNEL(output_b16_4, output<16, 4, false>)
LY_KERNEL(output_b16_8, output<16, 8, false>)
LY_KERNEL(output_chain_q4_1, output<4, 1, true>)
LY_KERNEL(output_chain_q4_2, output<4, 2, true>)
LY_KERNEL(output_chain_q4_4, output<4, 4, true>)
LY_KERNEL(output_chain_q4_8, output<4, 8, true>)
LY_KERNEL(output_chain_q8_1, output<8, 1, true>)
LY_KERNEL(output_chain_q8_2, output<8, 2, true>)
LY_KERNEL(output_chain_q8_4, output<8, 4, true>)
LY_KERNEL(output_chain_q8_8, output<8, 8, true>)
LY_KERNEL(output_chain_b16_1, output<16, 1, true>)
LY_KERNEL(output_chain_b16_2, output<16, 2, true>)
LY_KERNEL(output_chain_b16_4, output<16, 4, true>)
LY_KERNEL(output_chain_b16_8, output<16, 8, true>)
