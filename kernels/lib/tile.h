// tile: the matrix product of many rows, a tile of BM rows by 64 outputs a threadgroup of four simdgroups.
//
// Weights go from memory through registers, where they are dequantised and rounded to half, into a threadgroup tile: no
// expanded matrix in memory. Rows of activations are copied asynchronously where the device can, one step ahead.
// A simdgroup makes TM x TN of the tile: 32 x 32 of 64 rows, 16 x 32 of 32 rows, 16 x 16 of 16 rows.
#pragma once
#include "lib/operand.h"

constant uint TILE_COLS = 64;
constant uint TILE_K = 64;    // inputs a step
constant uint TILE_LD = 72;   // row stride of both tiles: padded against bank conflicts

// A weight matrix and the row of it that this thread brings into the tile: tile row thread / 2, half thread % 2.
struct TileWeights {
  device const uint *codes;
  device const bfloat *scales;
  device const bfloat *biases;
  uint row;
  bool inside;
  uint cols, group_shift;
};

// Brings inputs k .. k + 64 of the tile's rows of activations. `rows[i]`: the row of x, or NO_ROW for zeros.
template <uint BM>
inline void tile_copy(threadgroup half *to, threadgroup const uint *rows, device const half *x, uint stride, uint k, uint cols,
                      uint thread_at) {
  for (uint i = 0; i < BM / 16; ++i) {
    uint row = thread_at / 8 + i * 16, column = thread_at % 8 * 8, from = rows[row];
    threadgroup half *at = to + row * TILE_LD + column;
    if (from != NO_ROW && k + column < cols) ly_copy16(at, x + from * stride + k + column);
    else *(threadgroup uint4 *)at = uint4(0u, 0u, 0u, 0u);
  }
  ly_copy_commit();
}

// tile += x[rows] W^T. `activations` has room for two steps of BM rows, `weights` for one of 64; all threads call it, and
// may use both rooms for something else afterwards.
template <uint BITS, uint BM, uint TM, uint TN>
inline void tile_multiply(thread ly_tile<TM, TN> &tile, threadgroup half *activations, threadgroup half *weights,
                          threadgroup const uint *rows, device const half *x, uint stride, thread const TileWeights &w, uint thread_at) {
  uint simdgroup_at = thread_at / 32, half_at = thread_at % 2 * 32;
  uint row_at = TN == 16 ? 0 : simdgroup_at / 2 * TM, column_at = TN == 16 ? simdgroup_at * TN : simdgroup_at % 2 * TN;
  threadgroup half *to = weights + thread_at / 2 * TILE_LD + half_at;
  WeightRun<BITS> run;
  run_load<BITS>(run, w.codes, w.scales, w.biases, w.row, w.inside, half_at, w.cols, w.group_shift);
  tile_copy<BM>(activations, rows, x, stride, 0, w.cols, thread_at);
  uint step = 0;
  for (uint k = 0; k < w.cols; k += TILE_K) {
    run_store<BITS>(run, to);
    ly_copy_wait<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const half *now = activations + step * (BM * TILE_LD);
    step = 1 - step;
    if (k + TILE_K < w.cols) {
      run_load<BITS>(run, w.codes, w.scales, w.biases, w.row, w.inside, k + TILE_K + half_at, w.cols, w.group_shift);
      tile_copy<BM>(activations + step * (BM * TILE_LD), rows, x, stride, k + TILE_K, w.cols, thread_at);
    }
    ly_tile_mma<64>(tile, now + row_at * TILE_LD, TILE_LD, weights + column_at * TILE_LD, TILE_LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Puts a tile into `out`, BM rows of TILE_LD floats; a barrier makes it visible to all threads.
template <uint TM, uint TN>
inline void tile_gather(thread const ly_tile<TM, TN> &tile, threadgroup float *out, uint thread_at) {
  uint simdgroup_at = thread_at / 32;
  uint row_at = TN == 16 ? 0 : simdgroup_at / 2 * TM, column_at = TN == 16 ? simdgroup_at * TN : simdgroup_at % 2 * TN;
  ly_tile_store(tile, out + row_at * TILE_LD + column_at, TILE_LD);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
