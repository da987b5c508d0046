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

// moe_count: how many rows chose each expert.
// Layout   counts [experts] u32. Work: a threadgroup an expert, a row a thread.
kernel void moe_count(device const uint *routes [[buffer(0)]], device uint *counts [[buffer(1)]],
                      constant PlaceArgs &args [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                      uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint parts[32];
  uint count = 0;
  for (uint row = thread_at; row < args.rows; row += simdgroups * 32) {
    device const uint *ids = routes + row * (2 * args.per_token + 1);
    for (uint i = 0; i < args.per_token; ++i) count += ids[i] == group.x ? 1u : 0u;
  }
  count = simd_sum(count);
  if (lane == 0) parts[simdgroup_at] = count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_at == 0) {
    uint total = 0;
    for (uint i = 0; i < simdgroups; ++i) total += parts[i];
    counts[group.x] = total;
  }
}

// moe_place: the assignments in expert order, and the tiles that the grouped products work on.
// Math     order = assignments (row * (per_token + 1) + choice) sorted by expert, then row
// Layout   order [rows * per_token] u32; tiles [1 + rows * per_token / tile_rows + experts] uint4: first x = the number of
//          tiles; then each x = expert, y = its first place in `order`, z = places. An expert's tiles are as even as sixteens
//          allow, and as few as they can be.
// Work     a threadgroup an expert: it finds its own first place and tile from all counts.
kernel void moe_place(device const uint *routes [[buffer(0)]], device const uint *counts [[buffer(1)]],
                      device uint *order [[buffer(2)]], device uint4 *tiles [[buffer(3)]], constant PlaceArgs &args [[buffer(4)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint parts[32];
  uint expert = group.x, size = args.tile_rows;
  uint place = 0, tile = 0;
  for (uint i = lane; i < expert; i += 32) {
    place += counts[i];
    tile += (counts[i] + size - 1) / size;
  }
  place = simd_sum(place);
  tile = simd_sum(tile);
  uint count = counts[expert], own_tiles = (count + size - 1) / size;
  uint even = own_tiles > 0 ? ((count + own_tiles - 1) / own_tiles + 15) / 16 * 16 : 16u;
  for (uint i = thread_at; i < own_tiles; i += simdgroups * 32)
    tiles[1 + tile + i] = uint4(expert, place + i * even, min(even, count - i * even), 0u);
  if (expert == args.experts - 1 && thread_at == 0) tiles[0] = uint4(tile + own_tiles, 0u, 0u, 0u);

  uint threads = simdgroups * 32;
  for (uint first = 0; first < args.rows; first += threads) {
    uint row = first + thread_at, choice = args.per_token;
    if (row < args.rows) {
      device const uint *ids = routes + row * (2 * args.per_token + 1);
      for (uint i = 0; i < args.per_token; ++i)
        if (ids[i] == expert) choice = i;
    }
    uint chosen = choice < args.per_token ? 1u : 0u;
    uint before = simd_prefix_exclusive_sum(chosen), total = simd_sum(chosen);
    if (lane == 0) parts[simdgroup_at] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint here = place;
    for (uint i = 0; i < simdgroups; ++i) {
      if (i < simdgroup_at) here += parts[i];
      place += parts[i];
    }
    if (chosen == 1u) order[here + before] = row * (args.per_token + 1) + choice;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
