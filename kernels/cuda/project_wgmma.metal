#include "dialect/metal.h"
#include "cuda/warpgroup.h"
#include "lib/matrices.h"

// project_wgmma: project_matmul on warpgroups, 4 bits in groups of 64.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r]; with ADD one matrix, and out += W0 x.
// Layout   as project_matmul.
// Work     a threadgroup makes N rows by 128 outputs of one matrix, see cuda/warpgroup.h. Grid: (output tiles, row tiles).
// Numerics weights rounded to f16, f32 sums. Bound by multiply-adds.
template <uint N, bool ADD>
kernel void project_wgmma(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                          device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                          device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                          device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                          device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                          device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                          device const half *x [[buffer(12)]], device float *out [[buffer(13)]],
                          constant ProjectMatmulArgs &args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<WG_THREADS, 2>();
  threadgroup ly_swizzled<N> tiles[2];
  threadgroup uint rows_at[N];
  MatrixTile matrix = matrix_tile(group.x, WG_ROWS, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint upper = matrix.tile * WG_ROWS + simdgroup_at * 16 + lane / 4, lower = upper + 8, row0 = group.y * N;
  WgWeights w = wg_weights(codes, scales, biases, min(upper, matrix.rows - 1), codes, scales, biases, min(lower, matrix.rows - 1),
                           args.cols);
  if (thread_at < N) rows_at[thread_at] = row0 + thread_at < args.batch ? row0 + thread_at : NO_ROW;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float acc[N / 2];
  for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  wg_multiply<N>(acc, tiles, rows_at, x, args.x_stride, w, args.cols, thread_at);
  wg_store<N, ADD>(acc, out + matrix.column, args.out_stride, row0, args.batch, upper, lower, matrix.rows, lane);
}
LY_KERNEL(project_wgmma_16, project_wgmma<16, false>)
LY_KERNEL(project_wgmma_32, project_wgmma<32, false>)
LY_KERNEL(project_wgmma_64, project_wgmma<64, false>)
LY_KERNEL(project_wgmma_128, project_wgmma<128, false>)
LY_KERNEL(output_wgmma_16, project_wgmma<16, true>)
LY_KERNEL(output_wgmma_32, project_wgmma<32, true>)
LY_KERNEL(output_wgmma_64, project_wgmma<64, true>)
LY_KERNEL(output_wgmma_128, project_wgmma<128, true>)
