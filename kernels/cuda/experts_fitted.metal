#include "dialect/metal.h"
#include "cuda/quad.h"
#include "lib/grouped.h"
#include "lib/operand.h"

constant uint FITTED_ROWS = 160;                             // places of a tile, at most
constant uint FITTED_GATE_INPUTS = 2048;                     // of experts_gate_up_fitted, at most: their numbers are staged
constant uint FITTED_DOWN_VALUES = FITTED_ROWS * 512;        // of all places of a tile of experts_down_fitted
constant uint FITTED_DOWN_NUMBERS = 9216;                    // staged words of its rows of weights
constant uint FITTED_THREADS = 512;
constant uint FITTED_PASS = FITTED_THREADS / 8;              // rows of 128 bytes that all threads copy at once
constant uint FITTED_LINE = 256;                             // weights of a line of the second-level cache

// What a threadgroup works on: its expert, its first place (row, if dense), and how many are used; none behind the last tile.
struct FittedTile { uint expert, first, count; };

inline FittedTile fitted_tile(device const uint4 *tiles, uint tile_at, uint batch, uint tile_rows, uint dense) {
  FittedTile tile;
  if (dense != 0) {
    tile.expert = 0;
    tile.first = tile_at * tile_rows;
    tile.count = min(tile_rows, batch - tile.first);
  } else {
    uint4 entry = tile_at < tiles[0].x ? tiles[1 + tile_at] : uint4(0u, 0u, 0u, 0u);
    tile.expert = entry.x;
    tile.first = entry.y;
    tile.count = entry.z;
  }
  return tile;
}

// The tile's number `at`; those behind the last are the last again: their results go nowhere.
inline uint fitted_assignment(device const uint *order, FittedTile tile, uint at, uint per_token, uint dense) {
  uint place = tile.first + min(at, tile.count - 1);
  return dense != 0 ? place * (per_token + 1) + per_token : order[place];
}

// Brings inputs k .. k + 128 of N rows, `from` values from `x` on, to two tiles.
template <uint N>
inline void fitted_copy(threadgroup ly_swizzled<N> *to, device const half *x, thread uint *from, uint k, uint thread_at) {
  // Addresses kept from copy to copy would take the registers of sums.
#pragma unroll
  for (uint i = 0; i < (N + FITTED_PASS - 1) / FITTED_PASS; ++i) ly_anew(from[i]);
  threadgroup half *first = ly_swizzled_at(to[0], thread_at / 8, thread_at % 8);
#pragma unroll
  for (uint step = 0; step < 2; ++step)
#pragma unroll
    for (uint i = 0; i < (N + FITTED_PASS - 1) / FITTED_PASS; ++i)
      if ((i + 1) * FITTED_PASS <= N || i * FITTED_PASS + thread_at / 8 < N)
        ly_copy16(first + (step * N + i * FITTED_PASS) * WG_K, x + from[i] + k + step * WG_K);
}

// Where a thread finds the numbers of its four rows of weights: columns `column` + 32 i of one projection, at most `last`.
struct FittedNumbers {
  device const uint *scales;
  device const uint *biases;
  uint column, last;
};

// Stages the numbers of all rows, 64 rows for each i; `pairs` of groups a row. All loads are on their way together.
inline void fitted_stage(threadgroup uint *numbers, FittedNumbers from, uint pairs, uint stride, uint thread_at) {
  uint scales[8], biases[8], pair = thread_at % 8;
#pragma unroll
  for (uint i = 0; i < 8; ++i) {
    uint at = pair + i % 2 * 8, word = min(from.column + i / 2 * 32, from.last) * pairs + at;
    scales[i] = at < pairs ? from.scales[word] : 0u;
    biases[i] = at < pairs ? from.biases[word] : 0u;
  }
#pragma unroll
  for (uint i = 0; i < 8; ++i) {
    uint at = pair + i % 2 * 8;
    if (at < pairs) quad_stage(numbers + (thread_at / 8 + i / 2 * FITTED_PASS) * stride + 2 * at, scales[i], biases[i]);
  }
}

// The two weight rows of a lane: the lane's fourth of their strides, and their numbers as staged.
struct FittedRows {
  device const uint4 *upper;
  device const uint4 *lower;
  threadgroup const uint *upper_numbers;
  threadgroup const uint *lower_numbers;
};

// Sends for weights k .. k + 512 of the simdgroup's sixteen rows, a line a lane.
inline void fitted_prefetch(FittedRows w, uint k, uint cols, uint lane) {
  k += lane % 2 * FITTED_LINE;
  if (k < cols) ly_prefetch((lane % 4 < 2 ? w.upper : w.lower) + k / 32);
}

// acc = W x^T times WG_GAIN for N rows; stages of activations of two tiles each, as many as there is room for.
template <uint N>
inline void fitted_gate_up(thread float *acc, threadgroup ly_swizzled<16> *stages, threadgroup uint *numbers,
                           device const half *x, thread uint *from, FittedRows w, FittedNumbers unstaged, uint cols,
                           uint thread_at, uint lane) {
  constexpr uint STAGES = N <= FITTED_ROWS / 2 ? 8 : 4;
  threadgroup ly_swizzled<N> *tiles = (threadgroup ly_swizzled<N> *)stages;
  for (uint stage = 0; stage + 1 < STAGES; ++stage) {
    if (stage * QUAD_K < cols) fitted_copy<N>(tiles + 2 * stage, x, from, stage * QUAD_K, thread_at);
    ly_copy_commit();
  }
  QuadPicks picks = quad_picks(lane);
  QuadWords loaded, turned;
  quad_load(loaded, w.upper, w.lower);
  fitted_stage(numbers, unstaged, cols / QUAD_K, quad_numbers(cols), thread_at);
  ly_copy_wait<STAGES - 2>();
  ly_wgmma_see();
  // The first stage and the numbers are there.
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  uint a[8], b[8], now = 0;
  quad_turn(turned, loaded, picks);
  quad_operands<0>(a, turned, w.upper_numbers[0], w.lower_numbers[0]);
  for (uint k = 0; k < cols; k += QUAD_K) {
    bool more = k + QUAD_K < cols;
    threadgroup const uint *above = w.upper_numbers + k / WG_K, *below = w.lower_numbers + k / WG_K;
    threadgroup ly_swizzled<N> *here = tiles + 2 * now;
    quad_first_quarter<N>(acc, a, here);
    // The next stage is there, and all are done with the one before this.
    ly_copy_wait<STAGES - 3>();
    ly_wgmma_see();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (more) quad_load(loaded, w.upper + (k + QUAD_K) / 32, w.lower + (k + QUAD_K) / 32);
    if (k % (2 * FITTED_LINE) == 0) fitted_prefetch(w, k + 2 * FITTED_LINE, cols, lane);
    uint ahead = k + (STAGES - 1) * QUAD_K;
    if (ahead < cols) fitted_copy<N>(tiles + 2 * (now == 0 ? STAGES - 1 : now - 1), x, from, ahead, thread_at);
    ly_copy_commit();
    quad_other_quarters<N>(acc, a, b, turned, above, below, here);
    if (more) {
      quad_turn(turned, loaded, picks);
      quad_operands<0>(a, turned, above[2], below[2]);
    }
    now = now + 1 == STAGES ? 0 : now + 1;
  }
  ly_wgmma_all<N>(acc);
}

// experts_gate_up_fitted: experts_gate_up_matmul on warpgroups, tiles as wide as they have places; 4 bits in groups of 64.
// Math     hidden[row, choice] = silu(gate_e x[row]) * (up_e x[row])
// Layout   as experts_gate_up_matmul; rows of a multiple of 128 inputs, at most FITTED_GATE_INPUTS.
// Work     a threadgroup makes up to 160 places of one expert by 128 columns, on four warpgroups. A product is as wide as the
//          tile has places, in sixteens. Weights are sent for four strides ahead, activations are copied three or more ahead:
//          so much must be on its way that neither memory nor the second level waits. See cuda/quad.h.
//          Grid: one after the other: (column tiles * place tiles).
// Numerics weights rounded to f16, f32 sums, f16 result.
kernel void experts_gate_up_fitted(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                   device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                   device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                   device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]],
                                   device const uint4 *tiles [[buffer(8)]], device half *hidden [[buffer(9)]],
                                   constant GroupedArgs &args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                                   uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                   uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<512, 1>();
  ly_threadgroup_kib<194>();
  threadgroup ly_swizzled<16> stages[FITTED_ROWS / 16 * 8];
  threadgroup uint numbers[256 * (FITTED_GATE_INPUTS / WG_K + 1)];
  threadgroup uint places[FITTED_ROWS];
  uint k = args.per_token, dense = args.dense, last = args.width - 1, columns = (args.width + 127) / 128;
  FittedTile tile = fitted_tile(tiles, group.x / columns, args.batch, args.tile_rows, dense);
  if (tile.count == 0) return;
  uint column0 = group.x % columns * 128;
  uint gate_row = args.gate_first + tile.expert * args.gate_stride, up_row = args.up_first + tile.expert * args.up_stride;
  // Of sixteen rows of weights eight are of gate and eight of up.
  uint column = column0 + simdgroup_at * 8 + lane / 4, here = min(column, last), stride = quad_numbers(args.cols);
  FittedRows rows;
  rows.upper = (device const uint4 *)(gate_codes + (gate_row + here) * (args.cols / 8)) + lane % 4;
  rows.lower = (device const uint4 *)(up_codes + (up_row + here) * (args.cols / 8)) + lane % 4;
  rows.upper_numbers = numbers + (simdgroup_at * 16 + lane / 4) * stride;
  rows.lower_numbers = rows.upper_numbers + 8 * stride;
  fitted_prefetch(rows, 0, args.cols, lane);
  uint staged = thread_at / 8, pairs = args.cols / QUAD_K;
  bool gates = staged % 16 < 8;
  FittedNumbers unstaged;
  unstaged.scales = (device const uint *)(gates ? gate_scales : up_scales) + (gates ? gate_row : up_row) * pairs;
  unstaged.biases = (device const uint *)(gates ? gate_biases : up_biases) + (gates ? gate_row : up_row) * pairs;
  unstaged.column = column0 + staged / 16 * 8 + staged % 8;
  unstaged.last = last;
  ly_prefetch((lane % 2 == 0 ? unstaged.scales : unstaged.biases) + min(unstaged.column + lane % 8 / 2 * 32, last) * pairs);
  uint from[(FITTED_ROWS + FITTED_PASS - 1) / FITTED_PASS];
#pragma unroll
  for (uint i = 0; i < (FITTED_ROWS + FITTED_PASS - 1) / FITTED_PASS; ++i)
    from[i] = fitted_assignment(order, tile, i * FITTED_PASS + thread_at / 8, k, dense) / (k + 1) * args.cols + thread_at % 8 * 8;
  // Where each place's hidden values go.
  if (thread_at < FITTED_ROWS) {
    uint assignment = fitted_assignment(order, tile, thread_at, k, dense);
    places[thread_at] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride;
  }
  float acc[FITTED_ROWS / 2];
  switch ((tile.count + 15) / 16) {
    case 1: fitted_gate_up<16>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 2: fitted_gate_up<32>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 3: fitted_gate_up<48>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 4: fitted_gate_up<64>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 5: fitted_gate_up<80>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 6: fitted_gate_up<96>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 7: fitted_gate_up<112>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 8: fitted_gate_up<128>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    case 9: fitted_gate_up<144>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
    default: fitted_gate_up<160>(acc, stages, numbers, x, from, rows, unstaged, args.cols, thread_at, lane); break;
  }
  // Two lanes of neighbouring columns exchange a row each, so that each stores two values.
  bool odd = (lane / 4) % 2 != 0;
#pragma unroll
  for (uint j = 0; j < FITTED_ROWS / 8; ++j) {
    if (j * 8 < tile.count) {
      float values[2];
#pragma unroll
      for (uint i = 0; i < 2; ++i) {
        float gate = acc[4 * j + i] * (1.0f / WG_GAIN), up = acc[4 * j + 2 + i] * (1.0f / WG_GAIN);
        values[i] = silu(gate) * up;
      }
      float theirs = simd_shuffle_xor(odd ? values[0] : values[1], ushort(4));
      uint at = j * 8 + lane % 4 * 2 + (odd ? 1u : 0u);
      uint pair = ly_pack2_finite(odd ? theirs : values[0], odd ? values[1] : theirs);
      if (at < tile.count && column < args.width) *(device uint *)(hidden + places[at] + column / 2 * 2) = pair;
    }
  }
}

// What a threadgroup makes: `rows` outputs of weights from `codes` on, to `part` from place `places[i]` on.
struct FittedDown {
  device const uint *codes;
  device const uint *scales;
  device const uint *biases;
  device half *part;
  threadgroup uint *numbers;
  threadgroup const uint *places;
  uint cols, rows;
};

// Sends for the sixteen rows of weights of each simdgroup, of 256 rows from `first` on.
inline void fitted_prefetch_down(FittedDown w, uint first, uint lane, uint simdgroup_at) {
  device const uint *rows = w.codes + (first + simdgroup_at * 16) * (w.cols / 8);
  for (uint line = lane; line < w.cols * 16 / FITTED_LINE; line += 32) ly_prefetch(rows + line * (FITTED_LINE / 8));
}

// Stages the numbers of all rows, which follow each other. Eight loads of a thread of each kind are on their way together.
inline void fitted_stage_down(FittedDown w, uint stride, uint thread_at) {
  uint pairs = w.cols / QUAD_K, all = w.rows * pairs;
  for (uint first = thread_at; first < all; first += 8 * FITTED_THREADS) {
    uint scales[8], biases[8];
#pragma unroll
    for (uint i = 0; i < 8; ++i) {
      uint at = min(first + i * FITTED_THREADS, all - 1);
      scales[i] = w.scales[at];
      biases[i] = w.biases[at];
    }
#pragma unroll
    for (uint i = 0; i < 8; ++i) {
      uint at = first + i * FITTED_THREADS;
      if (at < all) quad_stage(w.numbers + at / pairs * stride + at % pairs * 2, scales[i], biases[i]);
    }
  }
}

// For N places, of which `count` are there. Outputs are a multiple of 256: each of four warpgroups takes every fourth 64.
template <uint N>
inline void fitted_down(FittedDown w, device const half *x, thread uint *from, uint count, threadgroup ly_swizzled<16> *stages,
                        uint thread_at, uint lane, uint simdgroup_at) {
  uint cols = w.cols;
  threadgroup ly_swizzled<N> *tiles = (threadgroup ly_swizzled<N> *)stages;
  for (uint k = 0; k < cols; k += QUAD_K) fitted_copy<N>(tiles + k / WG_K, x, from, k, thread_at);
  ly_copy_commit();
  uint row = simdgroup_at * 16 + lane / 4 * 2, words = cols / 32, stride = quad_numbers(cols);
  device const uint4 *upper = (device const uint4 *)w.codes + row * words + lane % 4;
  threadgroup const uint *above = w.numbers + row * stride;
  bool odd = (lane / 4) % 2 != 0;
  QuadPicks picks = quad_picks(lane);
  QuadWords loaded, turned;
  quad_load(loaded, upper, upper + words);
  fitted_stage_down(w, stride, thread_at);
  ly_copy_wait<0>();
  ly_wgmma_see();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint a[8], b[8];
  quad_turn(turned, loaded, picks);
  quad_operands<0>(a, turned, above[0], above[stride]);
  for (uint done = 0; done < w.rows; done += 256) {
    if (done + 256 < w.rows) fitted_prefetch_down(w, done + 256, lane, simdgroup_at);
    float acc[N / 2];
#pragma unroll
    for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
    for (uint k = 0; k < cols; k += QUAD_K) {
      bool here = k + QUAD_K < cols, more = here || done + 256 < w.rows;
      // Of this row, or of the one 256 further on.
      uint ahead = here ? (k + QUAD_K) / 32 : 256 * words, number = here ? (k + QUAD_K) / WG_K : 256 * stride;
      if (more) quad_load(loaded, upper + ahead, upper + ahead + words);
      threadgroup const uint *now = above + k / WG_K;
      quad_first_quarter<N>(acc, a, tiles + k / WG_K);
      quad_other_quarters<N>(acc, a, b, turned, now, now + stride, tiles + k / WG_K);
      if (more) {
        quad_turn(turned, loaded, picks);
        quad_operands<0>(a, turned, above[number], above[number + stride]);
      }
    }
    ly_wgmma_all<N>(acc);
    upper += 256 * words;
    above += 256 * stride;
    // Two lanes of neighbouring weight rows exchange a place each, so that each stores four values.
    uint column = done + simdgroup_at * 16 + lane / 8 * 4;
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) {
      uint pairs[2];
#pragma unroll
      for (uint i = 0; i < 2; ++i)
        pairs[i] = ly_pack2_finite(acc[4 * j + i] * (1.0f / WG_GAIN), acc[4 * j + 2 + i] * (1.0f / WG_GAIN));
      uint theirs = simd_shuffle_xor(odd ? pairs[0] : pairs[1], ushort(4)), at = j * 8 + lane % 4 * 2 + (odd ? 1u : 0u);
      device uint2 *to = (device uint2 *)(w.part + w.places[at] + column);
      uint2 four = odd ? uint2(theirs, pairs[1]) : uint2(pairs[0], theirs);
      if (at < count) *to = four;
    }
  }
}

// experts_down_fitted: experts_down_matmul on warpgroups, tiles as wide as they have places; 4 bits in groups of 64.
// Math     part[row, choice] = down_e hidden[row, choice]
// Layout   as experts_down_matmul; rows of a multiple of 128 inputs, of which a tile has FITTED_DOWN_VALUES at most, and a
//          multiple of 256 outputs, as is args.part, which a threadgroup takes at most.
// Work     a threadgroup makes up to 160 places of one expert by args.part columns: their activations stay in threadgroup memory,
//          and behind them four warpgroups go their own ways, so that one stores while others multiply.
//          Weights are sent for 256 rows ahead. Grid: one after the other: (parts * place tiles).
// Numerics as above.
kernel void experts_down_fitted(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                                device const bfloat *biases [[buffer(2)]], device const half *x [[buffer(3)]],
                                device const uint *order [[buffer(4)]], device const uint4 *tiles [[buffer(5)]],
                                device half *part [[buffer(6)]], constant GroupedArgs &args [[buffer(7)]],
                                uint3 group [[threadgroup_position_in_grid]],
                                uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<512, 1>();
  ly_threadgroup_kib<197>();
  threadgroup ly_swizzled<16> stages[FITTED_DOWN_VALUES / 1024];
  threadgroup uint numbers[FITTED_DOWN_NUMBERS];
  threadgroup uint places[FITTED_ROWS];
  uint k = args.per_token, dense = args.dense, parts = (args.width + args.part - 1) / args.part;
  FittedTile tile = fitted_tile(tiles, group.x / parts, args.batch, args.tile_rows, dense);
  if (tile.count == 0) return;
  uint column0 = group.x % parts * args.part, first = args.gate_first + tile.expert * args.gate_stride + column0;
  uint pairs = args.cols / QUAD_K;
  FittedDown w = {codes + first * (args.cols / 8),
                  (device const uint *)scales + first * pairs,
                  (device const uint *)biases + first * pairs,
                  part + column0,
                  numbers,
                  places,
                  args.cols,
                  min(args.part, args.width - column0)};
  fitted_prefetch_down(w, 0, lane, simdgroup_at);
  for (uint word = thread_at * 32; word < w.rows * pairs; word += FITTED_THREADS * 32) {
    ly_prefetch(w.scales + word);
    ly_prefetch(w.biases + word);
  }
  uint from[(FITTED_ROWS + FITTED_PASS - 1) / FITTED_PASS];
#pragma unroll
  for (uint i = 0; i < (FITTED_ROWS + FITTED_PASS - 1) / FITTED_PASS; ++i) {
    uint assignment = fitted_assignment(order, tile, i * FITTED_PASS + thread_at / 8, k, dense);
    from[i] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride + thread_at % 8 * 8;
  }
  // Where each place's results go.
  if (thread_at < FITTED_ROWS) places[thread_at] = fitted_assignment(order, tile, thread_at, k, dense) * args.width;
  switch ((tile.count + 15) / 16) {
    case 1: fitted_down<16>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 2: fitted_down<32>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 3: fitted_down<48>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 4: fitted_down<64>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 5: fitted_down<80>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 6: fitted_down<96>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 7: fitted_down<112>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 8: fitted_down<128>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    case 9: fitted_down<144>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
    default: fitted_down<160>(w, x, from, tile.count, stages, thread_at, lane, simdgroup_at); break;
  }
}
