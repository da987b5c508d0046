#include "dialect/metal.h"
#include "cuda/span.h"
#include "lib/chain.h"
#include "lib/matrices.h"

// project_mma: project on tensor cores, for groups of 64 and rows of whole spans.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r], times the norm's factor of row r
// Layout   as project, but x in halves, see lib/halves.h.
// Work     a simdgroup makes TILES times sixteen outputs of one span of the inputs, see cuda/span.h; those that share outputs
//          add up through threadgroup memory. All weights are on their way before the launch before has ended, and stay in
//          registers for all rows of x. Few simdgroups with many registers: what a launch leaves of them is room for the
//          next one to begin. Grid: (output tiles of all matrices).
// Numerics products exact, activations of 22 bits, f32 sums. Bound by weight bytes.
template <uint BITS, uint TILES>
kernel void project_mma(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                        device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                        device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                        device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                        device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                        device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                        device const float *x [[buffer(12)]], device const float *sums [[buffer(13)]],
                        device float *out [[buffer(14)]], constant ProjectArgs &args [[buffer(15)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
  ly_resident<MMA_SIMDGROUPS * 32, 2>();
  threadgroup float partial[MMA_SIMDGROUPS * TILES * 16];
  uint spans = args.cols / span_inputs<BITS>(), outputs = simdgroups / spans * TILES * 16;
  uint span = simdgroup_at % spans, tile = simdgroup_at / spans * TILES;
  MatrixTile matrix = matrix_tile(group.x, outputs, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint first = matrix.tile * outputs;
  SpanWeights<BITS> w[TILES];
  for (uint n = 0; n < TILES; ++n) {
    uint weight_row = first + (tile + n) * 16;
    if (weight_row < matrix.rows) {
      span_load(w[n], 0, codes, scales, biases, min(weight_row + lane / 4, matrix.rows - 1), span, args.cols, lane);
      span_load(w[n], 1, codes, scales, biases, min(weight_row + lane / 4 + 8, matrix.rows - 1), span, args.cols, lane);
    }
  }
  ly_wait_previous(x, sums);
  for (uint row = 0; row < args.batch; ++row) {
    ChainParts chain = chain_load(sums, row, args.parts, lane);
    SpanInputs<BITS> in;
    span_inputs_load(in, x + row * args.cols, span, lane);
    float2 products[TILES];
    span_products<BITS, TILES>(products, w, in, lane);
    if (row > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    partial_store<TILES>(partial, products, simdgroup_at, lane);
    float factor = chain_scale(chain, sums, row, args.parts, args.cols, args.eps, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at < outputs && first + thread_at < matrix.rows)
      out[row * args.out_stride + matrix.column + first + thread_at] =
          partial_add<TILES>(0.0f, partial, thread_at / 16, spans, thread_at % 16) * factor;
  }
}
LY_KERNEL(project_mma_q4, project_mma<4, 2>)
LY_KERNEL(project_mma_q8, project_mma<8, 1>)
