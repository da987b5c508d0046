// span: sixteen weight rows times SPAN inputs by one simdgroup on tensor cores, for one row of activations.
//
// Codes enter the product as they are stored: a code in the low bits of a half is the subnormal number code * 2^-24, and
// tensor cores keep subnormals; so a mask makes an operand, without a conversion. An activation is two halves, x * 2^-8
// rounded and what that misses times 2^11, together 22 bits, in two columns of the other operand. Each group of inputs has
// two columns of its own, the rest of which is zero: its sum comes out alone, products exact, and its scale and bias are
// applied once, in f32.
//
// A chunk is what the four lanes of a weight row load with 16 bytes each; a span is four chunks.
#pragma once
#include "lib/operand.h"

constant uint MMA_SIMDGROUPS = 8;   // of a threadgroup of project_mma, output_mma and experts_gate_up_mma; policy.rs says the same
constant uint MMA_GROUP = 64;       // inputs of a quantisation group
constant uint MMA_INPUTS = 4096;    // of a row of activations that is staged, at most
constant uint MMA_STAGED = 5 * MMA_INPUTS / 16;   // of such a row, of four or eight bits, in threadgroup memory

// Inputs of a span, of a chunk, and products of a chunk, each of 16 inputs.
template <uint BITS> inline uint span_inputs() { return 2048 / BITS; }
template <uint BITS> inline uint chunk_inputs() { return 512 / BITS; }
template <uint BITS> inline uint chunk_steps() { return 32 / BITS; }

// Of staged activations: what the lanes t of a product load in all its steps, one step after the other, and a gap, so that
// neither those who write nor those who read meet in a bank.
template <uint BITS> inline uint lane_steps() { return chunk_steps<BITS>() + 1; }
template <uint BITS> inline uint staged_at(uint chunk, uint t) { return (chunk * 4 + t) * lane_steps<BITS>(); }

// Weights of lane 4 g + t: of rows g and g + 8 the words of its part of each chunk, and the scale and bias of every group
// whose sums it gets (group 4 i + t of the span).
template <uint BITS> struct SpanWeights {
  uint words[2][16];
  uint scales[2][8 / BITS];   // as they are stored
  uint biases[2][8 / BITS];
};

// One of the two bfloats in a word.
inline float bfloat_of(uint word, uint which) { return as_type<float>(which == 0 ? word << 16 : word & 0xffff0000u); }

// Row `row` of a matrix as the lane's upper (0) or lower (1) one; `span` along the row.
template <uint BITS>
inline void span_load(thread SpanWeights<BITS> &w, uint half_at, device const uint *codes, device const bfloat *scales,
                      device const bfloat *biases, uint row, uint span, uint cols, uint lane) {
  device const uint4 *from = (device const uint4 *)(codes + row * (cols * BITS / 32)) + span * 16 + lane % 4;
  for (uint chunk = 0; chunk < 4; ++chunk) {
    uint4 four = ly_load_now(from + 4 * chunk);
    w.words[half_at][4 * chunk] = four.x;
    w.words[half_at][4 * chunk + 1] = four.y;
    w.words[half_at][4 * chunk + 2] = four.z;
    w.words[half_at][4 * chunk + 3] = four.w;
  }
  uint group = (row * cols + span * span_inputs<BITS>()) / MMA_GROUP + lane % 4;
  for (uint i = 0; i < 8 / BITS; ++i) {
    w.scales[half_at][i] = ly_load_bits(scales + group + 4 * i);
    w.biases[half_at][i] = ly_load_bits(biases + group + 4 * i);
  }
}

// Eight consecutive activations on their way.
struct Inputs {
  float4 low;
  float4 high;
};

inline Inputs inputs_load(device const float *x, uint at) {
  Inputs in;
  in.low = *(device const float4 *)(x + at);
  in.high = *(device const float4 *)(x + at + 4);
  return in;
}

// Two activations as halves: x what they are, y what that misses.
inline uint2 split_pair(float first, float second) {
  uint high = narrowed_pair(first, second);
  return uint2(high, narrowed_pair((first - half_of(high, 0)) * 2048.0f, (second - half_of(high, 1)) * 2048.0f));
}

// The operand of one product for one lane: activations of two masks, four in all; whole and rest stand side by side.
inline void stage_step(threadgroup uint4 *to, float a, float b, float c, float d) {
  uint2 first = split_pair(a, b), second = split_pair(c, d);
  *to = uint4(first.x, second.x, first.y, second.y);
}

// Eight inputs, times 2^-8, as the operands of two products, `next` apart. A code that its mask leaves 2^s too large gets an
// activation 2^-s as large.
template <uint BITS>
inline void steps_stage(threadgroup uint4 *to, uint next, float4 low, float4 high) {
  if (BITS == 4) {
    stage_step(to, low.x, high.x, low.y * 0.0625f, high.y * 0.0625f);
    stage_step(to + next, low.z, high.z, low.w * 0.0625f, high.w * 0.0625f);
  } else {
    stage_step(to, low.x, low.z, low.y, low.w);
    stage_step(to + next, high.x, high.z, high.y, high.w);
  }
}

// The sum of a group whose inputs eight neighbouring lanes have; every lane of the simdgroup comes here.
inline float group_sum(Inputs in) {
  float sum = ((in.low.x + in.low.y) + (in.low.z + in.low.w)) + ((in.high.x + in.high.y) + (in.high.z + in.high.w));
  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  sum += simd_shuffle_xor(sum, 4);
  return sum;
}

// Writes inputs at .. at + 8 of a row, `at` a multiple of 8, where span_product looks for them, and with the help of the
// seven threads after it the sum of their group. Every lane of a simdgroup comes here, with `at` growing by 8 from lane to
// lane; `inside` is false behind the row's end.
template <uint BITS>
inline void inputs_stage(threadgroup uint4 *staged, threadgroup float *sums, Inputs in, uint at, bool inside, uint lane) {
  float4 low = in.low * 0.00390625f, high = in.high * 0.00390625f;
  uint chunk = at / chunk_inputs<BITS>(), within = at % chunk_inputs<BITS>(), t = within / (128 / BITS);
  threadgroup uint4 *to = staged + staged_at<BITS>(chunk, t) + within % (128 / BITS) / 4;
  if (inside) steps_stage<BITS>(to, 1, low, high);
  float sum = group_sum(in);
  if (inside && lane % 8 == 0) sums[at / MMA_GROUP] = sum;
}

// A whole row of `cols` inputs by all threads of the threadgroup, from thread `begin` on in the first round.
template <uint BITS>
inline void row_stage(threadgroup uint4 *staged, threadgroup float *sums, device const float *x, uint cols, uint begin, uint threads,
                      uint lane) {
  // Two rounds are on their way together.
  for (uint at = begin * 8; at - lane * 8 < cols; at += threads * 16) {
    uint second_at = at + threads * 8;
    Inputs first = inputs_load(x, at < cols ? at : 0u), second;
    bool two = second_at - lane * 8 < cols;
    if (two) second = inputs_load(x, second_at < cols ? second_at : 0u);
    inputs_stage<BITS>(staged, sums, first, at, at < cols, lane);
    if (two) inputs_stage<BITS>(staged, sums, second, second_at, second_at < cols, lane);
  }
}

// Adds one product: codes of a step, from the words of the upper and the lower row that have them, with its inputs.
template <uint BITS> inline void codes_mma(thread float *sums, uint a0, uint a1, uint step, uint2 b) {
  ly_anew(a0);   // the masked words of a whole span, kept from one row to the next, would fill the registers
  ly_anew(a1);
  if (BITS == 4) {
    if (step % 2 == 1) {
      a0 = a0 >> 8;
      a1 = a1 >> 8;
    }
    ly_mma(sums, a0 & 0x000f000fu, a1 & 0x000f000fu, a0 & 0x00f000f0u, a1 & 0x00f000f0u, b.x, b.y);
  } else {
    ly_mma(sums, a0 & 0x00ff00ffu, a1 & 0x00ff00ffu, a0 >> 8 & 0x00ff00ffu, a1 >> 8 & 0x00ff00ffu, b.x, b.y);
  }
}

// Outputs of rows g and g + 8 of each tile from one span: every lane of a row gets them. Tiles share what is loaded of the
// inputs. `staged` and `sums` of the whole row.
template <uint BITS, uint TILES>
inline void span_products(thread float2 *products, thread SpanWeights<BITS> *w, threadgroup const uint4 *staged,
                          threadgroup const float *sums, uint span, uint lane) {
  constexpr uint STEPS = 32 / BITS, SETS = 8 / BITS, CHUNKS = 4 / SETS;
  uint t = lane % 4, column = lane / 4;
  for (uint n = 0; n < TILES; ++n) products[n] = float2(0.0f, 0.0f);
  for (uint set = 0; set < SETS; ++set) {
    // Two chains a tile, so that a product need not wait for the one before it.
    float even[TILES][4], odd[TILES][4];
    for (uint n = 0; n < TILES; ++n)
      for (uint c = 0; c < 4; ++c) {
        even[n][c] = 0.0f;
        odd[n][c] = 0.0f;
      }
    for (uint i = 0; i < CHUNKS; ++i) {
      uint chunk = set * CHUNKS + i;
      // The group of this lane's inputs, of the set's four: whose columns they go to.
      bool mine = (BITS == 4 ? i * 2 + t / 2 : i) == column / 2;
      threadgroup const uint2 *from = (threadgroup const uint2 *)(staged + staged_at<BITS>(span * 4 + chunk, t)) + column % 2;
      for (uint step = 0; step < STEPS; ++step) {
        uint2 b = mine ? from[step * 2] : uint2(0u, 0u);
        uint word = chunk * 4 + step * 4 / STEPS;
        for (uint n = 0; n < TILES; ++n)
          codes_mma<BITS>(step % 2 == 0 ? even[n] : odd[n], w[n].words[0][word], w[n].words[1][word], step, b);
      }
    }
    // 2^32 and 2^21 undo what codes and activations were divided by.
    float sum = sums[(span * span_inputs<BITS>()) / MMA_GROUP + set * 4 + t];
    for (uint n = 0; n < TILES; ++n) {
      float above = (even[n][0] + odd[n][0]) * 4294967296.0f + (even[n][1] + odd[n][1]) * 2097152.0f;
      float below = (even[n][2] + odd[n][2]) * 4294967296.0f + (even[n][3] + odd[n][3]) * 2097152.0f;
      for (uint i = 0; i < 2; ++i) {   // not before the products: a scale on its way would be waited for
        ly_anew(w[n].scales[i][set]);
        ly_anew(w[n].biases[i][set]);
      }
      products[n].x += bfloat_of(w[n].scales[0][set], 0) * above + bfloat_of(w[n].biases[0][set], 0) * sum;
      products[n].y += bfloat_of(w[n].scales[1][set], 0) * below + bfloat_of(w[n].biases[1][set], 0) * sum;
    }
  }
  for (uint n = 0; n < TILES; ++n) {
    products[n].x += simd_shuffle_xor(products[n].x, 1);
    products[n].y += simd_shuffle_xor(products[n].y, 1);
    products[n].x += simd_shuffle_xor(products[n].x, 2);
    products[n].y += simd_shuffle_xor(products[n].y, 2);
  }
}

// Puts a simdgroup's outputs of its span, sixteen a tile, into `partial`, [simdgroups][TILES][16]; a barrier makes them
// visible to all.
template <uint TILES>
inline void partial_store(threadgroup float *partial, thread const float2 *products, uint simdgroup_at, uint lane) {
  for (uint n = 0; n < TILES; ++n)
    if (lane % 4 == 0) {
      partial[(simdgroup_at * TILES + n) * 16 + lane / 4] = products[n].x;
      partial[(simdgroup_at * TILES + n) * 16 + 8 + lane / 4] = products[n].y;
    }
}

// `sum` plus output `at` of `tile`, from the simdgroups that have its spans, one after the other.
template <uint TILES>
inline float partial_add(float sum, threadgroup const float *partial, uint tile, uint spans, uint at) {
  for (uint i = 0; i < spans; ++i) sum += partial[((tile / TILES * spans + i) * TILES + tile % TILES) * 16 + at];
  return sum;
}
