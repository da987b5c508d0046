#include "dialect/metal.h"
#include "lib/quantised.h"
#include "lib/tile.h"
#include "lib/matrices.h"

// project_matmul: one to four weight matrices times many rows of activations, side by side; see project for few rows.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r]; with ADD one matrix, and out += W0 x.
// Layout   x [batch, x_stride] f16; out [batch, out_stride] f32.
// Work     a threadgroup makes a tile of BM rows by 64 outputs of one matrix, see lib/tile.h.
//          Grid: (output tiles of all matrices, row tiles).
// Numerics weights rounded to f16, f32 sums. Bound by multiply-adds: 2 * batch * cols * outputs.
template <uint BITS, uint BM, uint TM, uint TN, bool ADD>
kernel void project_matmul(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                           device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                           device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                           device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                           device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                           device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                           device const half *x [[buffer(12)]], device float *out [[buffer(13)]],
                           constant ProjectMatmulArgs &args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_at [[thread_index_in_threadgroup]]) {
  threadgroup float activations[BM * TILE_LD];   // two steps of half, later the result
  threadgroup half weights[TILE_COLS * TILE_LD];
  threadgroup uint rows_at[BM];
  MatrixTile matrix = matrix_tile(group.x, TILE_COLS, args.rows0, args.rows1, args.rows2, args.rows3);
  TileWeights w;
  w.codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  w.scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  w.biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint rows = matrix.rows, column = matrix.column, first = matrix.tile * TILE_COLS, row0 = group.y * BM;
  w.row = first + thread_at / 2;
  w.inside = w.row < rows;
  w.cols = args.cols;
  w.group_shift = args.group_shift;
  if (thread_at < BM) rows_at[thread_at] = row0 + thread_at < args.batch ? row0 + thread_at : NO_ROW;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile<TM, TN> tile;
  ly_tile_zero(tile);
  tile_multiply<BITS, BM, TM, TN>(tile, (threadgroup half *)activations, weights, rows_at, x, args.x_stride, w, thread_at);
  tile_gather<TM, TN>(tile, activations, thread_at);
  for (uint i = thread_at; i < BM * TILE_COLS; i += 128) {
    uint row = i / TILE_COLS, at = i % TILE_COLS;
    if (row0 + row < args.batch && first + at < rows) {
      uint to = (row0 + row) * args.out_stride + column + first + at;
      if (ADD) out[to] += activations[row * TILE_LD + at];
      else out[to] = activations[row * TILE_LD + at];
    }
  }
}
LY_KERNEL(project_matmul_q4_16, project_matmul<4, 16, 16, 16, false>)
LY_KERNEL(project_matmul_q4_32, project_matmul<4, 32, 16, 32, false>)
LY_KERNEL(project_matmul_q4_64, project_matmul<4, 64, 32, 32, false>)
LY_KERNEL(project_matmul_q8_16, project_matmul<8, 16, 16, 16, false>)
LY_KERNEL(project_matmul_q8_32, project_matmul<8, 32, 16, 32, false>)
LY_KERNEL(project_matmul_q8_64, project_matmul<8, 64, 32, 32, false>)
LY_KERNEL(project_matmul_b16_16, project_matmul<16, 16, 16, 16, false>)
LY_KERNEL(project_matmul_b16_32, project_matmul<16, 32, 16, 32, false>)
LY_KERNEL(project_matmul_b16_64, project_matmul<16, 64, 32, 32, false>)
LY_KERNEL(output_matmul_q4_16, project_matmul<4, 16, 16, 16, true>)
LY_KERNEL(output_matmul_q4_32, project_matmul<4, 32, 16, 32, true>)
LY_KERNEL(output_matmul_q4_64, project_matmul<4, 64, 32, 32, true>)
LY_KERNEL(output_matmul_q8_16, project_matmul<8, 16, 16, 16, true>)
LY_KERNEL(output_matmul_q8_32, project_matmul<8, 32, 16, 32, true>)
LY_KERNEL(output_matmul_q8_64, project_matmul<8, 64, 32, 32, true>)
LY_KERNEL(output_matmul_b16_16, project_matmul<16, 16, 16, 16, true>)
LY_KERNEL(output_matmul_b16_32, project_matmul<16, 32, 16, 32, true>)
LY_KERNEL(output_matmul_b16_64, project_matmul<16, 64, 32, 32, true>)
