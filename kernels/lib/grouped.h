// grouped: the experts of many rows. Grouped products work over the tiles that moe_place made. An assignment is
// row * (per_token + 1) + choice; choice `per_token` is the shared expert, whose products are launches of their own with
// `dense` 1: every row in its order, no tile map.
#pragma once
#include "lib/operand.h"

struct GroupedArgs {
  uint cols, group_shift, batch, per_token, dense;   // batch: rows of the pass
  uint width;                                        // outputs of an expert
  uint hidden_stride, choice_stride;                 // hidden[row * hidden_stride + choice * choice_stride + column]
  uint gate_stride, gate_first, up_stride, up_first; // expert e is rows first + e * stride ..
  uint tile_rows, part;                              // places of a dense tile; outputs of a threadgroup of the fitted down and the thin kernels
};

// What a threadgroup works on: its expert, how many of its BM places are used, and the assignment of place `at`.
struct GroupedTile { uint expert, count; };

template <uint BM>
inline GroupedTile grouped_tile(device const uint4 *tiles, device const uint *order, threadgroup uint *assignments, uint tile_at,
                                uint batch, uint per_token, uint dense, uint thread_at) {
  GroupedTile tile;
  uint first = tile_at * BM;
  if (dense != 0) {
    tile.expert = 0;
    tile.count = first < batch ? min(BM, batch - first) : 0u;
  } else {
    uint4 entry = tile_at < tiles[0].x ? tiles[1 + tile_at] : uint4(0u, 0u, 0u, 0u);
    tile.expert = entry.x;
    tile.count = entry.z;
    first = entry.y;
  }
  if (thread_at < BM) {
    uint assignment = NO_ROW;
    if (thread_at < tile.count) assignment = dense != 0 ? (first + thread_at) * (per_token + 1) + per_token : order[first + thread_at];
    assignments[thread_at] = assignment;
  }
  return tile;
}
