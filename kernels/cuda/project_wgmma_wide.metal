#include "dialect/metal.h"
#include "cuda/warpgroup.h"
#include "lib/matrices.h"

constant uint WIDE_ROWS = 256;    // rows of activations of a threadgroup
constant uint WIDE_STAGES = 3;    // of activations in threadgroup memory; a stage is two steps
constant uint WIDE_K = 2 * WG_K;

// The thread's part of stage `k ..`: 16 bytes of every 32nd row, `from` values from `x` on. Behind the last stage an empty
// batch, which counts too.
inline void wide_copy(threadgroup ly_swizzled<WIDE_ROWS> *to, device const half *x, thread const uint *from, uint k, uint cols,
                      uint thread_at) {
  if (k < cols)
    for (uint step = 0; step < 2; ++step)
      for (uint i = 0; i < WIDE_ROWS / 32; ++i)
        ly_copy16(ly_swizzled_at(to[step], i * 32 + thread_at / 8, thread_at % 8), x + from[i] + k + step * WG_K);
  ly_copy_commit();
}

// project_wgmma_wide: project_wgmma for tiles of 256 rows, where there are enough of them, and rows of whole stages.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r]; with ADD one matrix, and out += W0 x.
// Layout   as project_matmul.
// Work     a threadgroup makes 256 rows by 128 outputs of one matrix and has a multiprocessor to itself: twice the products
//          of project_wgmma for the same weights. Two stages of activations are on their way while one is multiplied. One
//          step's weights are dequantised while the other's products run, also those of the next stage's first step; no
//          product is under way at the loop's edge, where the compiler could not tell whose registers it has.
//          Grid: (output tiles, row tiles).
// Numerics as project_wgmma. Bound by multiply-adds.
template <bool ADD>
kernel void project_wgmma_wide(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                               device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                               device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                               device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                               device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                               device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                               device const half *x [[buffer(12)]], device float *out [[buffer(13)]],
                               constant ProjectMatmulArgs &args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
                               uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                               uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<WG_THREADS, 1>();
  ly_threadgroup_kib<192>();
  threadgroup ly_swizzled<WIDE_ROWS> tiles[2 * WIDE_STAGES];
  MatrixTile matrix = matrix_tile(group.x, WG_ROWS, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint upper = matrix.tile * WG_ROWS + simdgroup_at * 16 + lane / 4, lower = upper + 8, row0 = group.y * WIDE_ROWS, t = lane % 4;
  WgWeights w = wg_weights(codes, scales, biases, min(upper, matrix.rows - 1), codes, scales, biases, min(lower, matrix.rows - 1),
                           args.cols);
  WgStep first, second;
  wg_load(first, w, 0);
  wg_load(second, w, WG_K);
  // Rows behind the last are the last again: their results go nowhere.
  uint from[WIDE_ROWS / 32];
  for (uint i = 0; i < WIDE_ROWS / 32; ++i)
    from[i] = min(row0 + i * 32 + thread_at / 8, args.batch - 1) * args.x_stride + thread_at % 8 * 8;
  for (uint stage = 0; stage + 1 < WIDE_STAGES; ++stage) wide_copy(tiles + 2 * stage, x, from, stage * WIDE_K, args.cols, thread_at);
  float acc[WIDE_ROWS / 2];
  for (uint i = 0; i < WIDE_ROWS / 2; ++i) acc[i] = 0.0f;
  uint a[16], b[16], now = 0;
  wg_operands(a, first, t);
  for (uint k = 0; k < args.cols; k += WIDE_K) {
    bool more = k + WIDE_K < args.cols;
    if (more) wg_load(first, w, k + WIDE_K);
    ly_copy_wait<WIDE_STAGES - 2>();
    ly_wgmma_see();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ly_wgmma_begin();
    wg_products<WIDE_ROWS>(acc, a, tiles[2 * now]);
    ly_wgmma_commit();
    // All are done with the stage before this one.
    wide_copy(tiles + 2 * (now == 0 ? WIDE_STAGES - 1 : now - 1), x, from, k + (WIDE_STAGES - 1) * WIDE_K, args.cols, thread_at);
    wg_operands(b, second, t);
    if (more) wg_load(second, w, k + WIDE_K + WG_K);
    ly_wgmma_begin();
    wg_products<WIDE_ROWS>(acc, b, tiles[2 * now + 1]);
    ly_wgmma_commit();
    ly_wgmma_before_last();
    if (more) wg_operands(a, first, t);   // the branch keeps it from sinking behind the wait
    ly_wgmma_all<WIDE_ROWS>(acc);
    now = now + 1 == WIDE_STAGES ? 0 : now + 1;
  }
  wg_store<WIDE_ROWS, ADD>(acc, out + matrix.column, args.out_stride, row0, args.batch, upper, lower, matrix.rows, lane);
}
LY_KERNEL(project_wgmma_wide, project_wgmma_wide<false>)
LY_KERNEL(output_wgmma_wide, project_wgmma_wide<true>)
