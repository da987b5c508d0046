#include "dialect/metal.h"
#include "cuda/thin.h"

// The experts of some hundred rows, most of which have few: see cuda/thin.h.

// The lane's rows of tile `tile`, eight outputs: gate above, up below, of the expert whose rows begin at `first`.
inline ThinRows thin_gate_rows(ThinRows first, uint tile, uint width, uint lane) {
  uint at = min(tile * 8 + lane / 4, width - 1);
  ThinRows rows = {first.above + at, first.below + at};
  return rows;
}

// Sends for the weights of tile `tile`.
inline void thin_gate_prefetch(thread const ThinPair &w, ThinRows first, uint tile, uint width, uint lane) {
  uint count = min(8u, width - tile * 8);
  thin_prefetch(w.above.codes, first.above + tile * 8, count, w.cols, lane);
  thin_prefetch(w.below.codes, first.below + tile * 8, count, w.cols, lane);
}

// All of a simdgroup's tiles before `end`, from `tile` on; `to`: where each place's outputs begin in `hidden`.
template <uint N>
inline void thin_gate_up(thread const ThinPair &w, ThinRows first, thread ThinWeights &weights, threadgroup const uint4 *staged,
                         threadgroup const float *sums, threadgroup const uint *to, device half *hidden, uint width, uint count, uint tile,
                         uint end, uint lane) {
  constexpr uint step = THIN_THREADS / 32;
  for (; tile < end; tile += step) {
    if (tile + step < end) thin_gate_prefetch(w, first, tile + step, width, lane);
    float acc[N][4];
#pragma unroll
    for (uint n = 0; n < N; ++n)
      for (uint c = 0; c < 4; ++c) acc[n][c] = 0.0f;
    for (uint group = 0; group < w.cols / MMA_GROUP; group += THIN_GROUPS) {
      bool last = (group + THIN_GROUPS) * MMA_GROUP == w.cols;
      ThinRows rows = thin_gate_rows(first, last ? tile + step : tile, width, lane);
      thin_multiply<THIN_GATE_INPUTS, N>(acc, weights, staged, sums, group, !last || tile + step < end, w, rows,
                                         last ? 0u : group + THIN_GROUPS, lane);
    }
    uint column = tile * 8 + lane / 4;
#pragma unroll
    for (uint n = 0; n < N; ++n)
      for (uint i = 0; i < 2; ++i) {
        uint place = n * 8 + lane % 4 * 2 + i;
        if (place < count && column < width) hidden[to[place] + column] = narrowed(silu(acc[n][i]) * acc[n][2 + i]);
      }
  }
}

// experts_gate_up_thin: experts_gate_up_matmul for experts of few rows, 4 bits in groups of 64.
// Math     hidden[row, choice] = silu(gate_e x[row]) * (up_e x[row])
// Layout   as experts_gate_up_matmul; rows of a multiple of 512 inputs, THIN_GATE_INPUTS at most.
// Work     a threadgroup makes args.part outputs of up to THIN_ROWS places of one expert, a simdgroup eight columns at a time:
//          gate rows above, up rows below. Grid: one after the other: (parts * place tiles).
// Numerics products exact, f32 sums, f16 result. Bound by weight bytes.
kernel void experts_gate_up_thin(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                 device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                 device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                 device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]],
                                 device const uint4 *tiles [[buffer(8)]], device half *hidden [[buffer(9)]],
                                 constant GroupedArgs &args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                                 uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                 uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<THIN_THREADS, 1>();
  ly_threadgroup_kib<136>();
  threadgroup uint4 staged[THIN_ROWS * (THIN_GATE_INPUTS / 8 + 4)];
  threadgroup float sums[THIN_GATE_INPUTS / MMA_GROUP * THIN_ROWS];
  threadgroup uint from[THIN_ROWS];
  threadgroup uint to[THIN_ROWS];
  uint parts = (args.width + args.part - 1) / args.part, part_at = group.x % parts;
  if (group.x / parts >= tiles[0].x) return;
  uint4 tile = tiles[1 + group.x / parts];   // expert, first place, places
  uint k = args.per_token;
  ThinPair w = {{gate_codes, gate_scales, gate_biases}, {up_codes, up_scales, up_biases}, args.cols};
  ThinRows first = {args.gate_first + tile.x * args.gate_stride, args.up_first + tile.x * args.up_stride};
  ThinWeights weights;
  uint at = part_at * args.part / 8 + simdgroup_at, end = (min((part_at + 1) * args.part, args.width) + 7) / 8;
  thin_load_all(weights, w, thin_gate_rows(first, at, args.width, lane), lane);
  if (at < end) thin_gate_prefetch(w, first, at, args.width, lane);
  if (thread_at < THIN_ROWS) {
    uint assignment = order[tile.y + min(thread_at, tile.z - 1)];
    from[thread_at] = assignment / (k + 1) * args.cols;
    to[thread_at] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  thin_stage<THIN_GATE_INPUTS>(staged, sums, x, from, tile.z, args.cols, thread_at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  switch ((tile.z + 7) / 8) {
    case 1: thin_gate_up<1>(w, first, weights, staged, sums, to, hidden, args.width, tile.z, at, end, lane); break;
    case 2: thin_gate_up<2>(w, first, weights, staged, sums, to, hidden, args.width, tile.z, at, end, lane); break;
    case 3: thin_gate_up<3>(w, first, weights, staged, sums, to, hidden, args.width, tile.z, at, end, lane); break;
    default: thin_gate_up<4>(w, first, weights, staged, sums, to, hidden, args.width, tile.z, at, end, lane); break;
  }
}

// The lane's rows of tile `tile`, sixteen outputs, of the expert whose rows begin at `first`.
inline ThinRows thin_down_rows(uint first, uint tile, uint width, uint lane) {
  uint at = tile * 16 + lane / 4;
  ThinRows rows = {first + min(at, width - 1), first + min(at + 8, width - 1)};
  return rows;
}

// Sends for the weights of tile `tile`.
inline void thin_down_prefetch(thread const ThinPair &w, uint first, uint tile, uint width, uint lane) {
  thin_prefetch(w.above.codes, first + tile * 16, min(16u, width - tile * 16), w.cols, lane);
}

// All of a simdgroup's tiles before `end`, from `tile` on; `to`: where each place's outputs begin in `part`.
template <uint N>
inline void thin_down(thread const ThinPair &w, uint first, thread ThinWeights &weights, threadgroup const uint4 *staged,
                      threadgroup const float *sums, threadgroup const uint *to, device half *part, uint width, uint count, uint tile,
                      uint end, uint lane) {
  constexpr uint step = THIN_THREADS / 32;
  for (; tile < end; tile += step) {
    if (tile + 2 * step < end) thin_down_prefetch(w, first, tile + 2 * step, width, lane);
    float acc[N][4];
#pragma unroll
    for (uint n = 0; n < N; ++n)
      for (uint c = 0; c < 4; ++c) acc[n][c] = 0.0f;
    for (uint group = 0; group < w.cols / MMA_GROUP; group += THIN_GROUPS) {
      bool last = (group + THIN_GROUPS) * MMA_GROUP == w.cols;
      ThinRows rows = thin_down_rows(first, last ? tile + step : tile, width, lane);
      thin_multiply<THIN_DOWN_INPUTS, N>(acc, weights, staged, sums, group, !last || tile + step < end, w, rows,
                                         last ? 0u : group + THIN_GROUPS, lane);
    }
#pragma unroll
    for (uint n = 0; n < N; ++n)
      for (uint c = 0; c < 4; ++c) {
        uint place = n * 8 + lane % 4 * 2 + c % 2, column = tile * 16 + lane / 4 + c / 2 * 8;
        if (place < count && column < width) part[to[place] + column] = narrowed(acc[n][c]);
      }
  }
}

// experts_down_thin: experts_down_matmul for experts of few rows, 4 bits in groups of 64.
// Math     part[row, choice] = down_e hidden[row, choice]
// Layout   as experts_down_matmul; rows of a multiple of 512 inputs, THIN_DOWN_INPUTS at most.
// Work     as experts_gate_up_thin, a simdgroup sixteen columns at a time. Grid: one after the other: (parts * place tiles).
// Numerics products exact, f32 sums, f16 result. Bound by weight bytes.
kernel void experts_down_thin(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                              device const bfloat *biases [[buffer(2)]], device const half *x [[buffer(3)]],
                              device const uint *order [[buffer(4)]], device const uint4 *tiles [[buffer(5)]],
                              device half *part [[buffer(6)]], constant GroupedArgs &args [[buffer(7)]],
                              uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<THIN_THREADS, 1>();
  ly_threadgroup_kib<69>();
  threadgroup uint4 staged[THIN_ROWS * (THIN_DOWN_INPUTS / 8 + 4)];
  threadgroup float sums[THIN_DOWN_INPUTS / MMA_GROUP * THIN_ROWS];
  threadgroup uint from[THIN_ROWS];
  threadgroup uint to[THIN_ROWS];
  uint parts = (args.width + args.part - 1) / args.part, part_at = group.x % parts;
  if (group.x / parts >= tiles[0].x) return;
  uint4 tile = tiles[1 + group.x / parts];   // expert, first place, places
  uint k = args.per_token;
  ThinPair w = {{codes, scales, biases}, {codes, scales, biases}, args.cols};
  uint first = args.gate_first + tile.x * args.gate_stride;
  ThinWeights weights;
  uint at = part_at * args.part / 16 + simdgroup_at, end = (min((part_at + 1) * args.part, args.width) + 15) / 16;
  thin_load_all(weights, w, thin_down_rows(first, at, args.width, lane), lane);
  if (at + THIN_THREADS / 32 < end) thin_down_prefetch(w, first, at + THIN_THREADS / 32, args.width, lane);
  if (thread_at < THIN_ROWS) {
    uint assignment = order[tile.y + min(thread_at, tile.z - 1)];
    from[thread_at] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride;
    to[thread_at] = assignment * args.width;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  thin_stage<THIN_DOWN_INPUTS>(staged, sums, x, from, tile.z, args.cols, thread_at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  switch ((tile.z + 7) / 8) {
    case 1: thin_down<1>(w, first, weights, staged, sums, to, part, args.width, tile.z, at, end, lane); break;
    case 2: thin_down<2>(w, first, weights, staged, sums, to, part, args.width, tile.z, at, end, lane); break;
    case 3: thin_down<3>(w, first, weights, staged, sums, to, part, args.width, tile.z, at, end, lane); break;
    default: thin_down<4>(w, first, weights, staged, sums, to, part, args.width, tile.z, at, end, lane); break;
  }
}
