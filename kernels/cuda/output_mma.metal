#include "dialect/metal.h"
#include "cuda/span.h"
#include "lib/output.h"

// row_stage for heads whose norm's factor is still to come, see lib/output.h.
inline void heads_stage(threadgroup uint4 *staged, threadgroup float *sums, device const float *x, device const float *squares,
                        constant OutputArgs &args, uint thread_at, uint lane) {
  uint first_at = thread_at * 8, second_at = MMA_INPUTS / 2 + first_at, last = args.cols - 8;
  Inputs first = inputs_load(x, min(first_at, last)), second = inputs_load(x, min(second_at, last));
  // The compiler would let the inputs wait until their factors are there; over a barrier loads do not sink.
  simdgroup_barrier(mem_flags::mem_none);
  float first_factor = head_factor(squares, min(first_at, last), args);
  float second_factor = head_factor(squares, min(second_at, last), args);
  first.low *= first_factor;
  first.high *= first_factor;
  second.low *= second_factor;
  second.high *= second_factor;
  inputs_stage<4>(staged, sums, first, first_at, first_at < args.cols, lane);
  inputs_stage<4>(staged, sums, second, second_at, second_at < args.cols, lane);
}

// output_mma: output of one row on tensor cores, 4 bits in groups of 64, rows of whole spans; for more see output_mma_rows.
// Math     residual += W x
// Layout   as output.
// Work     as project_mma; CHAIN as in output. Grid: (output tiles).
// Numerics as project_mma. Bound by weight bytes.
template <bool CHAIN>
kernel void output_mma(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                       device const bfloat *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                       device const float *head_squares [[buffer(4)]], device const float *gain [[buffer(5)]],
                       device float *residual [[buffer(6)]], device float *next [[buffer(7)]], device float *sums [[buffer(8)]],
                       constant OutputArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 staged[MMA_STAGED];
  threadgroup float group_sums[MMA_INPUTS / MMA_GROUP];
  threadgroup float partial[MMA_SIMDGROUPS * 16];
  threadgroup float squares[MMA_SIMDGROUPS];
  uint spans = args.cols / span_inputs<4>(), tiles = MMA_SIMDGROUPS / spans, outputs = tiles * 16;
  uint span = simdgroup_at % spans, tile = simdgroup_at / spans;
  uint first = group.x * outputs, weight_row = first + tile * 16 + lane / 4;
  SpanWeights<4> w[1];
  if (first + tile * 16 < args.rows) {
    span_load(w[0], 0, codes, scales, biases, min(weight_row, args.rows - 1), span, args.cols, lane);
    span_load(w[0], 1, codes, scales, biases, min(weight_row + 8, args.rows - 1), span, args.cols, lane);
  }
  bool mine = thread_at < outputs && first + thread_at < args.rows;
  float gain_here = CHAIN && mine ? gain[first + thread_at] : 0.0f;
  ly_wait_previous(x, head_squares);
  uint at = first + thread_at;
  float value = mine ? residual[at] : 0.0f;
  if (CHAIN && args.head_shift > 0) {
    heads_stage(staged, group_sums, x, head_squares, args, thread_at, lane);
  } else {
    row_stage<4>(staged, group_sums, x, args.cols, thread_at, MMA_SIMDGROUPS * 32, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float2 product[1];
  span_products<4, 1>(product, w, staged, group_sums, span, lane);
  partial_store<1>(partial, product, simdgroup_at, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (mine) {
    value = partial_add<1>(value, partial, thread_at / 16, spans, thread_at % 16);
    residual[at] = value;
    if (CHAIN) next[at] = value * gain_here;
  }
  if (CHAIN) {
    float square = simd_sum(mine ? value * value : 0.0f);
    if (lane == 0) squares[simdgroup_at] = square;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at == 0) {
      float total = 0.0f;
      for (uint i = 0; i < MMA_SIMDGROUPS; ++i) total += squares[i];
      sums[group.x] = total;
    }
  }
}
LY_KERNEL(output_mma, output_mma<false>)
LY_KERNEL(output_mma_chain, output_mma<true>)
