#include "dialect/metal.h"
#include "cuda/span_rows.h"
#include "lib/chain.h"
#include "lib/matrices.h"

// project_mma_rows: project_mma for two rows and more, of up to ROWS_INPUTS inputs.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r], times the norm's factor of row r
// Layout   as project.
// Work     as project_mma, with four rows in each product, see cuda/span_rows.h, and more rows four by four. A simdgroup
//          finishes outputs of one of the four. Grid: (output tiles of all matrices).
// Numerics as project_mma. Bound by weight bytes.
template <uint BITS, uint ROWS>
kernel void project_mma_rows(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                             device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                             device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                             device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                             device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                             device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                             device const float *x [[buffer(12)]], device const float *sums [[buffer(13)]],
                             device float *out [[buffer(14)]], constant ProjectArgs &args [[buffer(15)]],
                             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<MMA_SIMDGROUPS * 32, 3>();
  threadgroup uint4 staged[ROWS_INPUTS * ROWS / 4];
  threadgroup float group_sums[ROWS_INPUTS / MMA_GROUP * ROWS];
  threadgroup float partial[MMA_SIMDGROUPS * ROWS * 16];
  uint spans = args.cols / span_inputs<BITS>(), tiles = MMA_SIMDGROUPS / spans, outputs = tiles * 16;
  uint span = simdgroup_at % spans, tile = simdgroup_at / spans;
  MatrixTile matrix = matrix_tile(group.x, outputs, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint first = matrix.tile * outputs, weight_row = first + tile * 16 + lane / 4;
  RowsWeights<BITS> w;
  if (first + tile * 16 < matrix.rows) {
    rows_load(w, 0, codes, scales, biases, min(weight_row, matrix.rows - 1), span, args.cols, lane);
    rows_load(w, 1, codes, scales, biases, min(weight_row + 8, matrix.rows - 1), span, args.cols, lane);
  }
  ly_wait_previous(x, sums);
  for (uint row = 0; row < args.batch; row += ROWS) {
    uint rows = min(args.batch - row, ROWS), mine = simdgroup_at % ROWS, chained = row + min(mine, rows - 1);
    ChainParts chain = chain_load(sums, chained, args.parts, lane);
    rows_stage<BITS, ROWS, 2>(staged, group_sums, x + row * args.x_stride, args.x_stride, args.cols, rows, thread_at,
                              MMA_SIMDGROUPS * 32, lane);
    float factor = chain_scale(chain, sums, chained, args.parts, args.cols, args.eps, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float2 product = rows_product<BITS, ROWS>(w, staged, group_sums, span, rows, lane);
    rows_store<ROWS>(partial, product, rows, simdgroup_at, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = simdgroup_at / ROWS * 32 + lane; at < outputs; at += MMA_SIMDGROUPS / ROWS * 32) {
      if (mine < rows && first + at < matrix.rows)
        out[(row + mine) * args.out_stride + matrix.column + first + at] =
            rows_add<ROWS>(0.0f, partial, at / 16, spans, mine, at % 16) * factor;
    }
  }
}
LY_KERNEL(project_mma_rows_q4, project_mma_rows<4, 4>)
LY_KERNEL(project_mma_rows_q8, project_mma_rows<8, 4>)
