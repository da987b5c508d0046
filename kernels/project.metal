#include "dialect/metal.h"
#include "lib/vector.h"
#include "lib/chain.h"
#include "lib/matrices.h"

// project: one to four weight matrices times a few rows of activations, side by side.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r], times the norm's factor of row r
// Layout   x [batch, x_stride] f32; out [batch, out_stride] f32, the matrices' outputs from column 0 on, one after the other.
// Work     a simdgroup makes OUTPUTS outputs of ROWS rows, see lib/vector.h: a weight is read and widened once for all rows.
//          Grid: (output tiles of all matrices, row tiles).
// Numerics f32 sums of exact products scale * (code * x). Bound by weight bytes.
template <uint BITS, uint ROWS, uint PL>
kernel void project(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                    device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                    device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                    device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                    device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                    device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                    device const float *x [[buffer(12)]], device const float *sums [[buffer(13)]],
                    device float *out [[buffer(14)]], constant ProjectArgs &args [[buffer(15)]],
                    uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint OUTPUTS = ROWS > 2 ? 2 : 4, COUNT = STAGE_VALUES / ROWS, PADDED = COUNT / PL * (PL + 4);
  threadgroup float staged[STAGE_VALUES / PL * (PL + 4)];
  constexpr uint tile_rows = PROJECT_THREADS / 32 * OUTPUTS;
  MatrixTile matrix = matrix_tile(group.x, tile_rows, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint rows = matrix.rows, column = matrix.column;
  uint first = matrix.tile * tile_rows + simdgroup_at * OUTPUTS, row0 = group.y * ROWS;
  // Weights run one slice ahead, the first one even of the launch before.
  LaneWeights<BITS, PL> w[OUTPUTS];
  if (lane * PL < args.cols)
    for (uint n = 0; n < OUTPUTS; ++n)
      w[n] = lane_weights<BITS, PL>(codes, scales, biases, min(first + n, rows - 1), lane * PL, args.cols, args.group_shift);
  ly_wait_previous(x, sums);
  ChainParts chain[ROWS];
  float acc[OUTPUTS][ROWS];
  for (uint r = 0; r < ROWS; ++r) {
    chain[r] = chain_load(sums, min(row0 + r, args.batch - 1), args.parts, lane);
    for (uint n = 0; n < OUTPUTS; ++n) acc[n][r] = 0.0f;
  }
  for (uint base = 0; base < args.cols; base += COUNT) {
    if (base > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_rows<PL, ROWS, PROJECT_THREADS>(staged, x, args.x_stride, row0, args.batch, base, args.cols, thread_at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint slice = 0; slice < COUNT / (32 * PL); ++slice) {
      uint chunk = slice * 32 + lane, at = base + chunk * PL;
      LaneWeights<BITS, PL> following[OUTPUTS];
      if (at + 32 * PL < args.cols)
        for (uint n = 0; n < OUTPUTS; ++n)
          following[n] =
              lane_weights<BITS, PL>(codes, scales, biases, min(first + n, rows - 1), at + 32 * PL, args.cols, args.group_shift);
      if (at < args.cols) {
        for (uint r = 0; r < ROWS; ++r) {
          float values[PL];
          float total = lane_values<BITS, PL>(staged + r * PADDED + chunk * (PL + 4), values);
          for (uint n = 0; n < OUTPUTS; ++n) acc[n][r] += lane_dot<BITS, PL>(w[n], values, total);
        }
      }
      for (uint n = 0; n < OUTPUTS; ++n) w[n] = following[n];
    }
  }
  for (uint r = 0; r < ROWS; ++r) {
    float factor = chain_scale(chain[r], sums, min(row0 + r, args.batch - 1), args.parts, args.cols, args.eps, lane);
    for (uint n = 0; n < OUTPUTS; ++n) {
      float sum = simd_sum(acc[n][r]) * factor;
      if (lane == n && first + n < rows && row0 + r < args.batch) out[(row0 + r) * args.out_stride + column + first + n] = sum;
    }
  }
}
LY_KERNEL(project_q4_1_32, project<4, 1, 32>)
LY_KERNEL(project_q4_1_16, project<4, 1, 16>)
LY_KERNEL(project_q4_1_8, project<4, 1, 8>)
LY_KERNEL(project_q4_2_32, project<4, 2, 32>)
LY_KERNEL(project_q4_2_16, project<4, 2, 16>)
LY_KERNEL(project_q4_2_8, project<4, 2, 8>)
LY_KERNEL(project_q4_4_16, project<4, 4, 16>)
LY_KERNEL(project_q4_4_8, project<4, 4, 8>)
LY_KERNEL(project_q4_8_8, project<4, 8, 8>)
LY_KERNEL(project_q8_1_32, project<8, 1, 32>)
LY_KERNEL(project_q8_1_16, project<8, 1, 16>)
LY_KERNEL(project_q8_1_8, project<8, 1, 8>)
LY_KERNEL(project_q8_2_32, project<8, 2, 32>)
LY_KERNEL(project_q8_2_16, project<8, 2, 16>)
LY_KERNEL(project_q8_2_8, project<8, 2, 8>)
LY_KERNEL(project_q8_4_16, project<8, 4, 16>)
LY_KERNEL(project_q8_4_8, project<8, 4, 8>)
LY_KERNEL(project_q8_8_8, project<8, 8, 8>)
LY_KERNEL(project_b16_1_32, project<16, 1, 32>)
LY_KERNEL(project_b16_1_16, project<16, 1, 16>)
LY_KERNEL(project_b16_1_8, project<16, 1, 8>)
LY_KERNEL(project_b16_2_32, project<16, 2, 32>)
LY_KERNEL(project_b16_2_16, project<16, 2, 16>)
LY_KERNEL(project_b16_2_8, project<16, 2, 8>)
LY_KERNEL(project_b16_4_16, project<16, 4, 16>)
LY_KERNEL(project_b16_4_8, project<16, 4, 8>)
LY_KERNEL(project_b16_8_8, project<16, 8, 8>)
