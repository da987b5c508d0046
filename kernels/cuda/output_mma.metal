#include "dialect/metal.h"
#include "cuda/span.h"
#include "lib/output.h"

// output_mma: output of one row on tensor cores, 4 bits in groups of 64, rows of whole spans; for more see output_mma_rows.
// Math     residual += W x
// Layout   as output, but x in halves, see lib/halves.h.
// Work     as project_mma; CHAIN as in output, where a head has whole groups. Grid: (output tiles).
// Numerics as project_mma. Bound by weight bytes.
template <bool CHAIN>
kernel void output_mma(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                       device const bfloat *biases [[buffer(2)]], device const float *x [[buffer(3)]],
                       device const float *head_squares [[buffer(4)]], device const float *gain [[buffer(5)]],
                       device float *residual [[buffer(6)]], device float *next [[buffer(7)]], device float *sums [[buffer(8)]],
                       constant OutputArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
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
  SpanInputs<4> in;
  span_inputs_load(in, x, span, lane);
  if (CHAIN && args.head_shift > 0)
    for (uint set = 0; set < 2; ++set)
      in.factors[set] = head_factor(head_squares, (span * 8 + group_of(set, lane % 4)) * MMA_GROUP, args);
  float2 product[1];
  span_products<4, 1>(product, w, in, lane);
  partial_store<1>(partial, product, simdgroup_at, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (mine) {
    value = partial_add<1>(value, partial, thread_at / 16, spans, thread_at % 16);
    residual[at] = value;
    if (CHAIN) {
      next[at] = value * gain_here;
      halves_store_both(next, args.halves, 0, args.rows, at, value * gain_here);
    }
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
