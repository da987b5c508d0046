#include "dialect/metal.h"
#include "cuda/quad.h"
#include "lib/grouped.h"
#include "lib/operand.h"

constant uint FITTED_ROWS = 160;                             // places of a tile, at most
constant uint FITTED_GATE_INPUTS = 2048;                     // of experts_gate_up_fitted, at most: their numbers are staged
constant uint FITTED_DOWN_VALUES = FITTED_ROWS * 512;        // of all places of a tile of experts_down_fitted
constant uint FITTED_DOWN_NUMBERS = 9216;                    // staged words of its rows of weights

// What a threadgroup works on: its expert, its first place (row, if dense), and how many are used.
struct FittedTile { uint expert, first, count; };

inline FittedTile fitted_tile(device const uint4 *tiles, uint tile_at, uint batch, uint tile_rows, uint dense) {
  FittedTile tile;
  if (dense != 0) {
    tile.expert = 0;
    tile.first = tile_at * tile_rows;
    tile.count = min(tile_rows, batch - tile.first);
  } else {
    uint4 entry = tiles[1 + tile_at];
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
template <uint N, uint THREADS>
inline void fitted_copy(threadgroup ly_swizzled<N> *to, device const half *x, thread uint *from, uint k, uint thread_at) {
  constexpr uint PASS = THREADS / 8;
  // Addresses kept from copy to copy would take the registers of sums.
#pragma unroll
  for (uint i = 0; i < (N + PASS - 1) / PASS; ++i) ly_anew(from[i]);
#pragma unroll
  for (uint step = 0; step < 2; ++step)
#pragma unroll
    for (uint i = 0; i < (N + PASS - 1) / PASS; ++i) {
      uint row = i * PASS + thread_at / 8;
      if ((i + 1) * PASS <= N || row < N) ly_copy16(ly_swizzled_at(to[step], row, thread_at % 8), x + from[i] + k + step * WG_K);
    }
}

// The two weight rows of a lane: the lane's fourth of their strides, and their numbers as staged.
struct FittedRows {
  device const uint4 *upper;
  device const uint4 *lower;
  threadgroup const uint *upper_numbers;
  threadgroup const uint *lower_numbers;
};

// acc = W x^T times WG_GAIN for N rows; two or three stages of activations, of two tiles each.
template <uint N, uint GROUPS>
inline void fitted_gate_up(thread float *acc, threadgroup ly_swizzled<16> *stages, device const half *x, thread uint *from,
                           FittedRows w, uint cols, uint thread_at, uint lane) {
  constexpr uint THREADS = GROUPS * 128, STAGES = GROUPS == 2 ? 2 : 3;
  threadgroup ly_swizzled<N> *tiles = (threadgroup ly_swizzled<N> *)stages;
  fitted_copy<N, THREADS>(tiles, x, from, 0, thread_at);
  ly_copy_commit();
  if (STAGES == 3) {
    if (QUAD_K < cols) fitted_copy<N, THREADS>(tiles + 2, x, from, QUAD_K, thread_at);
    ly_copy_commit();
  }
  QuadPicks picks = quad_picks(lane);
  QuadWords loaded, turned;
  quad_load(loaded, w.upper, w.lower);
  if (STAGES == 3) {
    ly_copy_wait<1>();
    ly_wgmma_see();
  }
  // The numbers are staged.
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  uint a[8], b[8], now = 0;
  quad_turn(turned, loaded, picks);
  quad_operands<0>(a, turned, w.upper_numbers[0], w.lower_numbers[0]);
  for (uint k = 0; k < cols; k += QUAD_K) {
    bool more = k + QUAD_K < cols;
    if (more) quad_load(loaded, w.upper + (k + QUAD_K) / 32, w.lower + (k + QUAD_K) / 32);
    threadgroup const uint *above = w.upper_numbers + k / WG_K, *below = w.lower_numbers + k / WG_K;
    threadgroup ly_swizzled<N> *here = tiles + 2 * now;
    if (STAGES == 2) {
      ly_copy_wait<0>();
      ly_wgmma_see();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      // All are done with the other stage.
      if (more) fitted_copy<N, THREADS>(tiles + 2 * (1 - now), x, from, k + QUAD_K, thread_at);
      ly_copy_commit();
    }
    quad_first_half<N>(acc, a, b, turned, above, below, here[0]);
    if (STAGES == 3) {
      // The next stage is there, and all are done with the one before this.
      ly_copy_wait<0>();
      ly_wgmma_see();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (k + 2 * QUAD_K < cols)
        fitted_copy<N, THREADS>(tiles + 2 * (now == 0 ? STAGES - 1 : now - 1), x, from, k + 2 * QUAD_K, thread_at);
      ly_copy_commit();
    }
    quad_second_half<N>(acc, a, b, turned, above, below, here[1]);
    if (more) {
      quad_turn(turned, loaded, picks);
      quad_operands<0>(a, turned, above[2], below[2]);
    }
    ly_wgmma_all<N>(acc);
    now = now + 1 == STAGES ? 0 : now + 1;
  }
}

// Gate and up projections of all experts.
struct FittedPair {
  device const uint *gate_codes;
  device const uint *gate_scales;
  device const uint *gate_biases;
  device const uint *up_codes;
  device const uint *up_scales;
  device const uint *up_biases;
};

// One tile of places by GROUPS * 32 columns from `column0` on. All threads come here, and are done with threadgroup memory.
template <uint GROUPS>
inline void fitted_gate_up_tile(FittedPair w, device const half *x, device const uint *order, FittedTile tile,
                                device half *hidden, threadgroup ly_swizzled<16> *stages, threadgroup uint *numbers,
                                threadgroup uint *places,
                                constant GroupedArgs &args, uint column0, uint thread_at, uint lane, uint simdgroup_at) {
  constexpr uint THREADS = GROUPS * 128, PASS = THREADS / 8;
  uint k = args.per_token, dense = args.dense, last = args.width - 1;
  uint gate_row = args.gate_first + tile.expert * args.gate_stride, up_row = args.up_first + tile.expert * args.up_stride;
  uint from[(FITTED_ROWS + PASS - 1) / PASS];
#pragma unroll
  for (uint i = 0; i < (FITTED_ROWS + PASS - 1) / PASS; ++i)
    from[i] = fitted_assignment(order, tile, i * PASS + thread_at / 8, k, dense) / (k + 1) * args.cols + thread_at % 8 * 8;
  // Where each place's hidden values go.
  if (thread_at < FITTED_ROWS) {
    uint assignment = fitted_assignment(order, tile, thread_at, k, dense);
    places[thread_at] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride;
  }
  // Of sixteen rows of weights eight are of gate and eight of up.
  uint stride = quad_numbers(args.cols), pairs = args.cols / QUAD_K;
  for (uint r = thread_at / 8; r < GROUPS * 64; r += PASS) {
    uint column = min(column0 + r / 16 * 8 + r % 8, last);
    bool gate = r % 16 < 8;
    uint row = ((gate ? gate_row : up_row) + column) * pairs;
    device const uint *scales = (gate ? w.gate_scales : w.up_scales) + row;
    device const uint *biases = (gate ? w.gate_biases : w.up_biases) + row;
    for (uint i = thread_at % 8; i < pairs; i += 8) quad_stage(numbers + r * stride + 2 * i, scales[i], biases[i]);
  }
  uint column = column0 + simdgroup_at * 8 + lane / 4, here = min(column, last);
  FittedRows rows;
  rows.upper = (device const uint4 *)(w.gate_codes + (gate_row + here) * (args.cols / 8)) + lane % 4;
  rows.lower = (device const uint4 *)(w.up_codes + (up_row + here) * (args.cols / 8)) + lane % 4;
  rows.upper_numbers = numbers + (simdgroup_at * 16 + lane / 4) * stride;
  rows.lower_numbers = rows.upper_numbers + 8 * stride;
  float acc[FITTED_ROWS / 2];
  switch ((tile.count + 15) / 16) {
    case 1: fitted_gate_up<16, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 2: fitted_gate_up<32, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 3: fitted_gate_up<48, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 4: fitted_gate_up<64, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 5: fitted_gate_up<80, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 6: fitted_gate_up<96, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 7: fitted_gate_up<112, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 8: fitted_gate_up<128, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    case 9: fitted_gate_up<144, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
    default: fitted_gate_up<160, GROUPS>(acc, stages, x, from, rows, args.cols, thread_at, lane); break;
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
        values[i] = gate / (1.0f + exp(-gate)) * up;
      }
      float theirs = simd_shuffle_xor(odd ? values[0] : values[1], ushort(4));
      uint at = j * 8 + lane % 4 * 2 + (odd ? 1u : 0u);
      uint pair = narrowed_pair(odd ? theirs : values[0], odd ? values[1] : theirs);
      if (at < tile.count && column < args.width) *(device uint *)(hidden + places[at] + column / 2 * 2) = pair;
    }
  }
}

// experts_gate_up_fitted: experts_gate_up_matmul on warpgroups, tiles as wide as they have places; 4 bits in groups of 64.
// Math     hidden[row, choice] = silu(gate_e x[row]) * (up_e x[row])
// Layout   as experts_gate_up_matmul; rows of a multiple of 128 inputs, at most FITTED_GATE_INPUTS.
// Work     a threadgroup makes up to 160 places of one expert by 64 columns, and a second one on the same multiprocessor hides
//          where it begins and ends; of the wide one, four warpgroups make 128 columns and share activations, whose copies
//          and place in the second level halve. A product is as wide as the tile has places, in sixteens. See cuda/quad.h.
//          Grid: one after the other, or fewer, which then take every n-th: (column tiles * place tiles).
// Numerics weights rounded to f16, f32 sums, f16 result.
kernel void experts_gate_up_fitted(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                   device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                   device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                   device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]],
                                   device const uint4 *tiles [[buffer(8)]], device half *hidden [[buffer(9)]],
                                   constant GroupedArgs &args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                                   uint3 groups [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
                                   uint lane [[thread_index_in_simdgroup]],
                                   uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<256, 2>();
  ly_threadgroup_kib<98>();
  threadgroup ly_swizzled<16> stages[FITTED_ROWS / 16 * 4];
  threadgroup uint numbers[128 * (FITTED_GATE_INPUTS / WG_K + 1)];
  threadgroup uint places[FITTED_ROWS];
  FittedPair w = {gate_codes, (device const uint *)gate_scales, (device const uint *)gate_biases,
                  up_codes,   (device const uint *)up_scales,   (device const uint *)up_biases};
  uint columns = (args.width + 63) / 64;
  uint items = columns * (args.dense != 0 ? (args.batch + args.tile_rows - 1) / args.tile_rows : tiles[0].x);
  for (uint item = group.x; item < items; item += groups.x) {
    FittedTile tile = fitted_tile(tiles, item / columns, args.batch, args.tile_rows, args.dense);
    fitted_gate_up_tile<2>(w, x, order, tile, hidden, stages, numbers, places, args, item % columns * 64, thread_at, lane,
                           simdgroup_at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
kernel void experts_gate_up_fitted_wide(
    device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
    device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
    device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
    device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]], device const uint4 *tiles [[buffer(8)]],
    device half *hidden [[buffer(9)]], constant GroupedArgs &args [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
    uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<512, 1>();
  ly_threadgroup_kib<154>();
  threadgroup ly_swizzled<16> stages[FITTED_ROWS / 16 * 6];
  threadgroup uint numbers[256 * (FITTED_GATE_INPUTS / WG_K + 1)];
  threadgroup uint places[FITTED_ROWS];
  FittedPair w = {gate_codes, (device const uint *)gate_scales, (device const uint *)gate_biases,
                  up_codes,   (device const uint *)up_scales,   (device const uint *)up_biases};
  uint columns = (args.width + 127) / 128;
  uint items = columns * (args.dense != 0 ? (args.batch + args.tile_rows - 1) / args.tile_rows : tiles[0].x);
  for (uint item = group.x; item < items; item += groups.x) {
    FittedTile tile = fitted_tile(tiles, item / columns, args.batch, args.tile_rows, args.dense);
    fitted_gate_up_tile<4>(w, x, order, tile, hidden, stages, numbers, places, args, item % columns * 128, thread_at, lane,
                           simdgroup_at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// What a threadgroup makes: `rows` outputs from weight row `first` on, to `part` from place `places[i]` on.
struct FittedDown {
  device const uint *codes;
  device half *part;
  threadgroup const uint *numbers;
  threadgroup const uint *places;
  uint cols, first, rows;
};

// For N places, of which `count` are there. Outputs are a multiple of 256: each of four warpgroups takes every fourth 64.
template <uint N>
inline void fitted_down(FittedDown w, device const half *x, thread uint *from, uint count, threadgroup ly_swizzled<16> *stages,
                        uint thread_at, uint lane, uint simdgroup_at) {
  uint cols = w.cols;
  threadgroup ly_swizzled<N> *tiles = (threadgroup ly_swizzled<N> *)stages;
  for (uint k = 0; k < cols; k += QUAD_K) fitted_copy<N, 512>(tiles + k / WG_K, x, from, k, thread_at);
  ly_copy_commit();
  uint row = simdgroup_at * 16 + lane / 4 * 2, words = cols / 32, stride = quad_numbers(cols);
  device const uint4 *upper = (device const uint4 *)w.codes + (w.first + row) * words + lane % 4;
  threadgroup const uint *above = w.numbers + row * stride;
  bool odd = (lane / 4) % 2 != 0;
  QuadPicks picks = quad_picks(lane);
  QuadWords loaded, turned;
  quad_load(loaded, upper, upper + words);
  ly_copy_wait<0>();
  ly_wgmma_see();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint a[8], b[8];
  quad_turn(turned, loaded, picks);
  quad_operands<0>(a, turned, above[0], above[stride]);
  for (uint done = 0; done < w.rows; done += 256) {
    float acc[N / 2];
#pragma unroll
    for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
    for (uint k = 0; k < cols; k += QUAD_K) {
      bool here = k + QUAD_K < cols, more = here || done + 256 < w.rows;
      // Of this row, or of the one 256 further on.
      uint ahead = here ? (k + QUAD_K) / 32 : 256 * words, number = here ? (k + QUAD_K) / WG_K : 256 * stride;
      if (more) quad_load(loaded, upper + ahead, upper + ahead + words);
      threadgroup const uint *now = above + k / WG_K;
      quad_first_half<N>(acc, a, b, turned, now, now + stride, tiles[k / WG_K]);
      quad_second_half<N>(acc, a, b, turned, now, now + stride, tiles[k / WG_K + 1]);
      if (more) {
        quad_turn(turned, loaded, picks);
        quad_operands<0>(a, turned, above[number], above[number + stride]);
      }
      ly_wgmma_all<N>(acc);
    }
    upper += 256 * words;
    above += 256 * stride;
    // Two lanes of neighbouring weight rows exchange a place each, so that each stores four values.
    uint column = done + simdgroup_at * 16 + lane / 8 * 4;
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) {
      uint pairs[2];
#pragma unroll
      for (uint i = 0; i < 2; ++i)
        pairs[i] = narrowed_pair(acc[4 * j + i] * (1.0f / WG_GAIN), acc[4 * j + 2 + i] * (1.0f / WG_GAIN));
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
//          Grid: one after the other, or fewer, which then take every n-th: (parts * place tiles).
// Numerics as above.
kernel void experts_down_fitted(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                                device const bfloat *biases [[buffer(2)]], device const half *x [[buffer(3)]],
                                device const uint *order [[buffer(4)]], device const uint4 *tiles [[buffer(5)]],
                                device half *part [[buffer(6)]], constant GroupedArgs &args [[buffer(7)]],
                                uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                                uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<512, 1>();
  ly_threadgroup_kib<197>();
  threadgroup ly_swizzled<16> stages[FITTED_DOWN_VALUES / 1024];
  threadgroup uint numbers[FITTED_DOWN_NUMBERS];
  threadgroup uint places[FITTED_ROWS];
  uint k = args.per_token, dense = args.dense, parts = (args.width + args.part - 1) / args.part;
  uint items = parts * (dense != 0 ? (args.batch + args.tile_rows - 1) / args.tile_rows : tiles[0].x);
  for (uint item = group.x; item < items; item += groups.x) {
    FittedTile tile = fitted_tile(tiles, item / parts, args.batch, args.tile_rows, dense);
    uint column0 = item % parts * args.part, rows = min(args.part, args.width - column0);
    uint first = args.gate_first + tile.expert * args.gate_stride + column0;
    uint from[(FITTED_ROWS + 63) / 64];
#pragma unroll
    for (uint i = 0; i < (FITTED_ROWS + 63) / 64; ++i) {
      uint assignment = fitted_assignment(order, tile, i * 64 + thread_at / 8, k, dense);
      from[i] = assignment / (k + 1) * args.hidden_stride + assignment % (k + 1) * args.choice_stride + thread_at % 8 * 8;
    }
    // Where each place's results go.
    if (thread_at < FITTED_ROWS) places[thread_at] = fitted_assignment(order, tile, thread_at, k, dense) * args.width;
    uint stride = quad_numbers(args.cols), pairs = args.cols / QUAD_K;
    device const uint *scale_pairs = (device const uint *)scales + first * pairs;
    device const uint *bias_pairs = (device const uint *)biases + first * pairs;
    for (uint r = thread_at / 8; r < rows; r += 64)
      for (uint i = thread_at % 8; i < pairs; i += 8)
        quad_stage(numbers + r * stride + 2 * i, scale_pairs[r * pairs + i], bias_pairs[r * pairs + i]);
    FittedDown w = {codes, part + column0, numbers, places, args.cols, first, rows};
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
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
