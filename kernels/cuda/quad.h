// quad: 4-bit weights in groups of 64 as the first operand of wgmma, each row read by four lanes together.
//
// The operand wants of every word of a row one byte in each of four lanes. A load costs a cycle for every row that it touches,
// however little it takes of it; if each lane loads all words, as in warpgroup.h, loads take as long as the products of 128 rows.
// Here a lane loads a fourth of a stride of 128 inputs, 16 bytes, and the four lanes exchange bytes. Scales and biases are staged
// in threadgroup memory, rounded to half once, a word a group: each simdgroup reads eight rows at once. Scales are below 2.
#pragma once
#include "cuda/warpgroup.h"

constant uint QUAD_K = 128;   // inputs of a stride

// A lane's part of a stride of two weight rows. As loaded: words 4 (lane % 4) .. of the row's sixteen. Turned: byte i of word j
// is byte `lane % 4` of the row's word 4 i + j.
struct QuadWords { uint upper[4]; uint lower[4]; };

// `upper` and `lower` from the lane's fourth of the stride on.
inline void quad_load(thread QuadWords &to, device const uint4 *upper, device const uint4 *lower) {
  uint4 above = *upper, below = *lower;
  to.upper[0] = above.x, to.upper[1] = above.y, to.upper[2] = above.z, to.upper[3] = above.w;
  to.lower[0] = below.x, to.lower[1] = below.y, to.lower[2] = below.z, to.lower[3] = below.w;
}

// Which bytes a lane keeps in each of the two exchanges.
struct QuadPicks { uint first, second; };
inline QuadPicks quad_picks(uint lane) {
  QuadPicks picks;
  picks.first = (lane & 2) == 0 ? 0x5410u : 0x3276u;
  picks.second = (lane & 1) == 0 ? 0x6240u : 0x3715u;
  return picks;
}

inline uint quad_turned(uint word, QuadPicks picks) {
  uint two = ly_pick_bytes(word, simd_shuffle_xor(word, ushort(2)), picks.first);
  return ly_pick_bytes(two, simd_shuffle_xor(two, ushort(1)), picks.second);
}

inline void quad_turn(thread QuadWords &turned, thread const QuadWords &loaded, QuadPicks picks) {
#pragma unroll
  for (uint i = 0; i < 4; ++i) {
    turned.upper[i] = quad_turned(loaded.upper[i], picks);
    turned.lower[i] = quad_turned(loaded.lower[i], picks);
  }
}

// Words of a row of staged numbers: one a group, and one more where their number is even, so that eight rows are in eight banks.
inline uint quad_numbers(uint cols) { return cols / WG_K | 1u; }

// Stages the numbers of a pair of groups: two words from `to` on.
inline void quad_stage(threadgroup uint *to, uint scales, uint biases) {
  float gain = WG_GAIN;
  to[0] = ly_pack2(as_type<float>(scales << 16) * gain, as_type<float>(biases << 16) * gain);
  to[1] = ly_pack2(as_type<float>(scales & 0xffff0000u) * gain, as_type<float>(biases & 0xffff0000u) * gain);
}

// Inputs 32 AT .. of a stride as the first operands of two products. The numbers are those of the inputs' group.
template <uint AT> inline void quad_operands(thread uint *a, thread const QuadWords &turned, uint upper, uint lower) {
  uint upper_scale = ly_byte_scale(ly_pick_bytes(upper, upper, 0x1010u)), upper_bias = ly_pick_bytes(upper, upper, 0x3232u);
  uint lower_scale = ly_byte_scale(ly_pick_bytes(lower, lower, 0x1010u)), lower_bias = ly_pick_bytes(lower, lower, 0x3232u);
#pragma unroll
  for (uint i = 0; i < 4; ++i) {
    a[2 * i] = ly_dequantise_byte<AT>(turned.upper[i], upper_scale, upper_bias);
    a[2 * i + 1] = ly_dequantise_byte<AT>(turned.lower[i], lower_scale, lower_bias);
  }
}

// Their products, `step` 0 or 2.
template <uint N>
inline void quad_products(thread float *acc, thread const uint *a, threadgroup const ly_swizzled<N> &tile, uint step) {
  ly_wgmma_begin();
  ly_wgmma<N>(acc, a[0], a[1], a[2], a[3], tile, step);
  ly_wgmma<N>(acc, a[4], a[5], a[6], a[7], tile, step + 1);
  ly_wgmma_commit();
}

// The products of a stride, whose inputs 32 i .. are operands i: a quarter's operands are made while the quarter before it is
// multiplied. `a` has operands 0 before. The first quarter waits until the stride before is multiplied, so that its tiles are
// free; there is the place for barriers and loads, since a barrier's fence would wait for earlier loads. Behind the others `a` is
// free, and their last products are still on their way.
template <uint N>
inline void quad_first_quarter(thread float *acc, thread const uint *a, threadgroup const ly_swizzled<N> *tiles) {
  quad_products<N>(acc, a, tiles[0], 0);
  ly_wgmma_before_last();
}
// The numbers are from the stride's first group on.
template <uint N>
inline void quad_other_quarters(thread float *acc, thread uint *a, thread uint *b, thread const QuadWords &turned,
                                threadgroup const uint *upper, threadgroup const uint *lower,
                                threadgroup const ly_swizzled<N> *tiles) {
  quad_operands<1>(b, turned, upper[0], lower[0]);
  quad_products<N>(acc, b, tiles[0], 2);
  ly_wgmma_before_last();
  quad_operands<2>(a, turned, upper[1], lower[1]);
  quad_products<N>(acc, a, tiles[1], 0);
  ly_wgmma_before_last();
  quad_operands<3>(b, turned, upper[1], lower[1]);
  quad_products<N>(acc, b, tiles[1], 2);
  ly_wgmma_before_last();
}
