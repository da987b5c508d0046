#include "dialect/metal.h"
#include "cuda/span_rows.h"
#include "lib/output.h"

// rows_stage for heads whose norm's factor is still to come, see lib/output.h; `squares` of the first row.
template <uint ROWS>
inline void heads_rows_stage(threadgroup uint4 *staged, threadgroup float *sums, device const float *x, device const float *squares,
                             uint rows, constant OutputArgs &args, uint thread_at, uint lane) {
  uint heads = args.cols >> args.head_shift;
  for (uint at = thread_at * 8; at < args.cols; at += MMA_SIMDGROUPS * 32 * 8) {
    Inputs in[ROWS];
    for (uint i = 0; i < ROWS; ++i) in[i] = inputs_load(x + min(i, rows - 1) * args.x_stride, at);
    // As in output_mma.
    simdgroup_barrier(mem_flags::mem_none);
    for (uint i = 0; i < ROWS; ++i) {
      float factor = head_factor(squares + min(i, rows - 1) * heads * 4, at, args);
      in[i].low *= factor;
      in[i].high *= factor;
    }
    for (uint i = 0; i < ROWS; ++i)
      if (i < rows) rows_inputs_stage<4, ROWS>(staged, sums, in[i], i, at, lane);
  }
}

// output_mma_rows: output_mma for two rows and more.
// Math     residual[r] += W x[r]
// Layout   as output.
// Work     as project_mma_rows; CHAIN also begins the next norm, see lib/chain.h. Grid: (output tiles).
// Numerics as project_mma. Bound by weight bytes.
template <bool CHAIN, uint ROWS>
kernel void output_mma_rows(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                            device const bfloat *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                            device const float *head_squares [[buffer(4)]], device const float *gain [[buffer(5)]],
                            device float *residual [[buffer(6)]], device float *next [[buffer(7)]],
                            device float *sums [[buffer(8)]], constant OutputArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                            uint3 grid [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_threadgroup_kib<68>();
  // Simdgroups that finish one row, and outputs of a lane, at most.
  constexpr uint ABREAST = MMA_SIMDGROUPS / ROWS, EACH = (MMA_SIMDGROUPS * 16 + ABREAST * 32 - 1) / (ABREAST * 32);
  threadgroup uint4 staged[MMA_INPUTS * ROWS / 4];
  threadgroup float group_sums[MMA_INPUTS / MMA_GROUP * ROWS];
  threadgroup float partial[MMA_SIMDGROUPS * ROWS * 16];
  threadgroup float squares[MMA_SIMDGROUPS];
  uint spans = args.cols / span_inputs<4>(), tiles = MMA_SIMDGROUPS / spans, outputs = tiles * 16;
  uint span = simdgroup_at % spans, tile = simdgroup_at / spans;
  uint first = group.x * outputs, weight_row = first + tile * 16 + lane / 4;
  RowsWeights<4> w;
  if (first + tile * 16 < args.rows) {
    rows_load(w, 0, codes, scales, biases, min(weight_row, args.rows - 1), span, args.cols, lane);
    rows_load(w, 1, codes, scales, biases, min(weight_row + 8, args.rows - 1), span, args.cols, lane);
  }
  uint mine = simdgroup_at % ROWS, lane_at = simdgroup_at / ROWS * 32 + lane, end = min(outputs, args.rows - first);
  float gains[EACH];
  for (uint i = 0; i < EACH; ++i) {
    uint at = lane_at + i * ABREAST * 32;
    gains[i] = CHAIN && at < end ? gain[first + at] : 0.0f;
  }
  ly_wait_previous(x, head_squares);
  for (uint row = 0; row < args.batch; row += ROWS) {
    uint rows = min(args.batch - row, ROWS), from = (row + mine) * args.rows + first;
    float before[EACH];
    for (uint i = 0; i < EACH; ++i) {
      uint at = lane_at + i * ABREAST * 32;
      before[i] = mine < rows && at < end ? residual[from + at] : 0.0f;
    }
    device const float *inputs = x + row * args.x_stride;
    if (CHAIN && args.head_shift > 0) {
      device const float *squares_of = head_squares + row * (args.cols >> args.head_shift) * 4;
      heads_rows_stage<ROWS>(staged, group_sums, inputs, squares_of, rows, args, thread_at, lane);
    } else {
      rows_stage<4, ROWS, ROWS>(staged, group_sums, inputs, args.x_stride, args.cols, rows, thread_at, MMA_SIMDGROUPS * 32, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float2 product = rows_product<4, ROWS>(w, staged, group_sums, span, rows, lane);
    rows_store<ROWS>(partial, product, rows, simdgroup_at, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float square = 0.0f;
    for (uint i = 0; i < EACH; ++i) {
      uint at = lane_at + i * ABREAST * 32;
      if (mine < rows && at < end) {
        float value = rows_add<ROWS>(before[i], partial, at / 16, spans, mine, at % 16);
        residual[from + at] = value;
        if (CHAIN) {
          next[from + at] = value * gains[i];
          halves_store_both(next, args.halves, row + mine, args.rows, first + at, value * gains[i]);
        }
        square += value * value;
      }
    }
    if (CHAIN) {
      square = simd_sum(square);
      if (lane == 0) squares[simdgroup_at] = square;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (thread_at < rows) {
        float total = 0.0f;
        for (uint i = 0; i < ABREAST; ++i) total += squares[i * ROWS + thread_at];
        sums[(row + thread_at) * grid.x + group.x] = total;
      }
    }
  }
}
LY_KERNEL(output_mma_rows, output_mma_rows<false, 4>)
LY_KERNEL(output_mma_rows_chain, output_mma_rows<true, 4>)
