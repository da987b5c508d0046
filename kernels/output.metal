#include "dialect/metal.h"
#include "lib/vector.h"
#include "lib/output.h"

// output: the mixer's output projection of a few rows, added to the residual stream.
// Math     residual[r] += W x[r]
// Layout   x [batch, x_stride] f32; head_squares see lib/output.h; residual [batch, rows] f32; next [batch, rows] f32; sums [batch,
//          grid.x] f32.
// Work     a simdgroup makes an output of ROWS rows, as in project. CHAIN also ends the norm of heads and begins the next one,
//          see lib/output.h and lib/chain.h. Grid: (output tiles, row tiles).
// Numerics as project. Bound by weight bytes.
template <uint BITS, uint ROWS, uint PL, bool CHAIN>
kernel void output(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                   device const bfloat *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                   device const float *head_squares [[buffer(4)]], device const float *gain [[buffer(5)]],
                   device float *residual [[buffer(6)]], device float *next [[buffer(7)]], device float *sums [[buffer(8)]],
                   constant OutputArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                   uint3 grid [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint COUNT = STAGE_VALUES / ROWS, PADDED = COUNT / PL * (PL + 4);
  threadgroup float staged[STAGE_VALUES / PL * (PL + 4)];
  threadgroup float squares[32 * ROWS];
  uint output_at = group.x * simdgroups + simdgroup_at, row0 = group.y * ROWS;
  // Weights run one slice ahead, the first one even of the launch before.
  uint weight_row = min(output_at, args.rows - 1);
  LaneWeights<BITS, PL> w;
  if (lane * PL < args.cols) w = lane_weights<BITS, PL>(codes, scales, biases, weight_row, lane * PL, args.cols, args.group_shift);
  ly_wait_previous(x, head_squares);
  float acc[ROWS];
  for (uint r = 0; r < ROWS; ++r) acc[r] = 0.0f;
  for (uint base = 0; base < args.cols; base += COUNT) {
    if (base > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    StagedValues<OUTPUT_THREADS> values;
    rows_load<ROWS, OUTPUT_THREADS>(values, x, args.x_stride, row0, args.batch, base, args.cols, thread_at);
    if (CHAIN && args.head_shift > 0)
      for (uint i = 0; i < STAGE_VALUES / (4 * OUTPUT_THREADS); ++i) {
        uint at = (i * OUTPUT_THREADS + thread_at) * 4, row = min(row0 + at / COUNT, args.batch - 1);
        device const float *of_row = head_squares + row * (args.cols >> args.head_shift) * 4;
        values.fours[i] *= head_factor(of_row, min(base + at % COUNT, args.cols - 4), args);
      }
    rows_store<PL, ROWS, OUTPUT_THREADS>(staged, values, thread_at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint slice = 0; slice < COUNT / (32 * PL); ++slice) {
      uint chunk = slice * 32 + lane, at = base + chunk * PL;
      LaneWeights<BITS, PL> following;
      if (at + 32 * PL < args.cols)
        following = lane_weights<BITS, PL>(codes, scales, biases, weight_row, at + 32 * PL, args.cols, args.group_shift);
      if (at < args.cols) {
        for (uint r = 0; r < ROWS; ++r) {
          float values[PL];
          float total = lane_values<BITS, PL>(staged + r * PADDED + chunk * (PL + 4), values);
          acc[r] += lane_dot<BITS, PL>(w, values, total);
        }
      }
      w = following;
    }
  }
  for (uint r = 0; r < ROWS; ++r) {
    float sum = simd_sum(acc[r]);
    if (lane == 0) {
      float square = 0.0f;
      if (output_at < args.rows && row0 + r < args.batch) {
        uint at = (row0 + r) * args.rows + output_at;
        float value = residual[at] + sum;
        residual[at] = value;
        if (CHAIN) next[at] = value * gain[output_at];
        square = value * value;
      }
      if (CHAIN) squares[simdgroup_at * ROWS + r] = square;
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
LY_KERNEL(output_q4_1_32, output<4, 1, 32, false>)
LY_KERNEL(output_q4_1_16, output<4, 1, 16, false>)
LY_KERNEL(output_q4_1_8, output<4, 1, 8, false>)
LY_KERNEL(output_q4_2_32, output<4, 2, 32, false>)
LY_KERNEL(output_q4_2_16, output<4, 2, 16, false>)
LY_KERNEL(output_q4_2_8, output<4, 2, 8, false>)
LY_KERNEL(output_q4_4_16, output<4, 4, 16, false>)
LY_KERNEL(output_q4_4_8, output<4, 4, 8, false>)
LY_KERNEL(output_q4_8_8, output<4, 8, 8, false>)
LY_KERNEL(output_q8_1_32, output<8, 1, 32, false>)
LY_KERNEL(output_q8_1_16, output<8, 1, 16, false>)
LY_KERNEL(output_q8_1_8, output<8, 1, 8, false>)
LY_KERNEL(output_q8_2_32, output<8, 2, 32, false>)
LY_KERNEL(output_q8_2_16, output<8, 2, 16, false>)
LY_KERNEL(output_q8_2_8, output<8, 2, 8, false>)
LY_KERNEL(output_q8_4_16, output<8, 4, 16, false>)
LY_KERNEL(output_q8_4_8, output<8, 4, 8, false>)
LY_KERNEL(output_q8_8_8, output<8, 8, 8, false>)
LY_KERNEL(output_b16_1_32, output<16, 1, 32, false>)
LY_KERNEL(output_b16_1_16, output<16, 1, 16, false>)
LY_KERNEL(output_b16_1_8, output<16, 1, 8, false>)
LY_KERNEL(output_b16_2_32, output<16, 2, 32, false>)
LY_KERNEL(output_b16_2_16, output<16, 2, 16, false>)
LY_KERNEL(output_b16_2_8, output<16, 2, 8, false>)
LY_KERNEL(output_b16_4_16, output<16, 4, 16, false>)
LY_KERNEL(output_b16_4_8, output<16, 4, 8, false>)
LY_KERNEL(output_b16_8_8, output<16, 8, 8, false>)
LY_KERNEL(output_chain_q4_1_32, output<4, 1, 32, true>)
LY_KERNEL(output_chain_q4_1_16, output<4, 1, 16, true>)
LY_KERNEL(output_chain_q4_1_8, output<4, 1, 8, true>)
LY_KERNEL(output_chain_q4_2_32, output<4, 2, 32, true>)
LY_KERNEL(output_chain_q4_2_16, output<4, 2, 16, true>)
LY_KERNEL(output_chain_q4_2_8, output<4, 2, 8, true>)
LY_KERNEL(output_chain_q4_4_16, output<4, 4, 16, true>)
LY_KERNEL(output_chain_q4_4_8, output<4, 4, 8, true>)
LY_KERNEL(output_chain_q4_8_8, output<4, 8, 8, true>)
LY_KERNEL(output_chain_q8_1_32, output<8, 1, 32, true>)
LY_KERNEL(output_chain_q8_1_16, output<8, 1, 16, true>)
LY_KERNEL(output_chain_q8_1_8, output<8, 1, 8, true>)
LY_KERNEL(output_chain_q8_2_32, output<8, 2, 32, true>)
LY_KERNEL(output_chain_q8_2_16, output<8, 2, 16, true>)
LY_KERNEL(output_chain_q8_2_8, output<8, 2, 8, true>)
LY_KERNEL(output_chain_q8_4_16, output<8, 4, 16, true>)
LY_KERNEL(output_chain_q8_4_8, output<8, 4, 8, true>)
LY_KERNEL(output_chain_q8_8_8, output<8, 8, 8, true>)
LY_KERNEL(output_chain_b16_1_32, output<16, 1, 32, true>)
LY_KERNEL(output_chain_b16_1_16, output<16, 1, 16, true>)
LY_KERNEL(output_chain_b16_1_8, output<16, 1, 8, true>)
LY_KERNEL(output_chain_b16_2_32, output<16, 2, 32, true>)
LY_KERNEL(output_chain_b16_2_16, output<16, 2, 16, true>)
LY_KERNEL(output_chain_b16_2_8, output<16, 2, 8, true>)
LY_KERNEL(output_chain_b16_4_16, output<16, 4, 16, true>)
LY_KERNEL(output_chain_b16_4_8, output<16, 4, 8, true>)
LY_KERNEL(output_chain_b16_8_8, output<16, 8, 8, true>)
