#include "dialect/metal.h"
#include "lib/top_k.h"

// Routes of a row, `2 * per_token + 1` words: the experts' ids, their weights as f32 bits, the shared expert's gate.

struct TopKArgs { uint rows, experts, per_token; };

// moe_top_k: softmax, top-k and the shared expert's gate of every row.
// Math     p = softmax(logits); ids = top-k p; weights = p[ids] / sum; gate = sigmoid(last logit)
// Layout   logits [rows, experts + 1] f32; routes as above.
// Work     a simdgroup a row. Numerics f32. Bound by launch.
kernel void moe_top_k(device const float *logits [[buffer(0)]], device uint *routes [[buffer(1)]],
                      constant TopKArgs &args [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint row = group.x * simdgroups + simdgroup_at;
  uint last = min(row, args.rows - 1), k = args.per_token;
  device const float *from = logits + last * (args.experts + 1);
  uint id = top_k_ids(from, args.experts, k, lane);
  float weight = top_k_weight(from, id, k, lane);
  device uint *to = routes + last * (2 * k + 1);
  if (row < args.rows && lane < k) {
    to[lane] = id;
    to[k + lane] = as_type<uint>(weight);
  }
  if (row < args.rows && lane == 0) to[2 * k] = as_type<uint>(1.0f / (1.0f + exp(-from[args.experts])));
}

struct PlaceArgs { uint rows, per_token, experts, tile_rows; };

constant uint PLACE_BLOCKS = 64;   // that rows are dealt to, at most; policy.rs says the same, and of the next
constant uint PLACE_ROWS = 64;     // of a block, at least, and that are looked at together
constant uint CHOICES_MAX = 32;    // of a row

inline uint block_rows(uint rows) { return max(PLACE_ROWS, (rows + PLACE_BLOCKS - 1) / PLACE_BLOCKS); }

// The experts of up to PLACE_ROWS rows from `first` on, side by side, and behind them some that nobody is, up to a multiple of four.
// Returns how many fours. A barrier must follow.
inline uint choices_load(threadgroup uint *ids, device const uint *routes, uint first, uint end, uint per_token, uint thread_at,
                         uint threads) {
  uint all = (min(first + PLACE_ROWS, end) - first) * per_token, fours = (all + 3) / 4;
  for (uint i = thread_at; i < 4 * fours; i += threads)
    ids[i] = i < all ? routes[(first + i / per_token) * (2 * per_token + 1) + i % per_token] : 0xffffffffu;
  return fours;
}

// moe_count: how many rows of each block chose each expert.
// Layout   counts [blocks, experts] u32. Work: a threadgroup a block of rows, an expert a thread.
kernel void moe_count(device const uint *routes [[buffer(0)]], device uint *counts [[buffer(1)]],
                      constant PlaceArgs &args [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                      uint thread_at [[thread_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint ids[PLACE_ROWS * CHOICES_MAX];
  uint each = block_rows(args.rows), start = group.x * each, end = min(start + each, args.rows), threads = simdgroups * 32;
  for (uint base = 0; base < args.experts; base += threads) {
    uint expert = base + thread_at, count = 0;
    for (uint first = start; first < end; first += PLACE_ROWS) {
      uint fours = choices_load(ids, routes, first, end, args.per_token, thread_at, threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = 0; i < fours; ++i) {
        uint4 four = ((threadgroup const uint4 *)ids)[i];
        count += (four.x == expert ? 1u : 0u) + (four.y == expert ? 1u : 0u) + (four.z == expert ? 1u : 0u) + (four.w == expert ? 1u : 0u);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (expert < args.experts) counts[group.x * args.experts + expert] = count;
  }
}

// moe_place: the assignments in expert order, and the tiles that the grouped products work on.
// Math     order = assignments (row * (per_token + 1) + choice) sorted by expert, then row
// Layout   order [rows * per_token] u32; tiles [1 + rows * per_token / tile_rows + experts] uint4: first x = the number of
//          tiles; then each x = expert, y = its first place in `order`, z = places. An expert's tiles are as even as sixteens
//          allow, and as few as they can be.
// Work     a threadgroup a block of rows, an expert a thread: it finds the expert's first place from the counts of all blocks,
//          then looks through the block's choices. Of the tiles each threadgroup writes those of every blocks-th expert.
kernel void moe_place(device const uint *routes [[buffer(0)]], device const uint *counts [[buffer(1)]],
                      device uint *order [[buffer(2)]], device uint4 *tiles [[buffer(3)]], constant PlaceArgs &args [[buffer(4)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint TOGETHER = 16;   // counts on their way
  threadgroup uint ids[PLACE_ROWS * CHOICES_MAX];
  threadgroup uint parts[64];
  uint each = block_rows(args.rows), blocks = (args.rows + each - 1) / each, size = args.tile_rows, threads = simdgroups * 32;
  uint start = group.x * each, end = min(start + each, args.rows), places_before = 0, tiles_before = 0;
  for (uint base = 0; base < args.experts; base += threads) {
    uint expert = base + thread_at, at = min(expert, args.experts - 1), count = 0, before = 0;
    for (uint first = 0; first < blocks; first += TOGETHER) {
      uint some[TOGETHER];
#pragma unroll
      for (uint i = 0; i < TOGETHER; ++i) some[i] = counts[min(first + i, blocks - 1) * args.experts + at];
#pragma unroll
      for (uint i = 0; i < TOGETHER; ++i) {
        count += expert < args.experts && first + i < blocks ? some[i] : 0u;
        before += first + i < group.x ? some[i] : 0u;
      }
    }
    uint own_tiles = (count + size - 1) / size;
    uint place = simd_prefix_exclusive_sum(count), tile = simd_prefix_exclusive_sum(own_tiles);
    if (lane == 31) {
      parts[simdgroup_at] = place + count;
      parts[32 + simdgroup_at] = tile + own_tiles;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    place += places_before;
    tile += tiles_before;
    for (uint i = 0; i < simdgroups; ++i) {
      if (i < simdgroup_at) {
        place += parts[i];
        tile += parts[32 + i];
      }
      places_before += parts[i];
      tiles_before += parts[32 + i];
    }
    if (expert < args.experts && expert % blocks == group.x) {
      uint even = own_tiles > 0 ? ((count + own_tiles - 1) / own_tiles + 15) / 16 * 16 : 16u;
      for (uint i = 0; i < own_tiles; ++i) tiles[1 + tile + i] = uint4(expert, place + i * even, min(even, count - i * even), 0u);
      if (expert == args.experts - 1) tiles[0] = uint4(tile + own_tiles, 0u, 0u, 0u);
    }
    place += before;
    for (uint first = start; first < end; first += PLACE_ROWS) {
      uint fours = choices_load(ids, routes, first, end, args.per_token, thread_at, threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = 0; i < fours; ++i) {
        uint4 four = ((threadgroup const uint4 *)ids)[i];
        if (four.x == expert || four.y == expert || four.z == expert || four.w == expert)
          for (uint c = 0; c < 4; ++c)
            if (four[c] == expert) {
              uint choice = i * 4 + c;
              order[place] = (first + choice / args.per_token) * (args.per_token + 1) + choice % args.per_token;
              ++place;
            }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
