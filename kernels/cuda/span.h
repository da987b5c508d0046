// span: sixteen weight rows times SPAN inputs by one simdgroup on tensor cores, for one row of activations.
//
// Codes enter the product as they are stored: a code in the low bits of a half is the subnormal number code * 2^-24, and
// tensor cores keep subnormals; so a mask makes an operand, without a conversion. An activation is two halves, in two columns
// of the other operand, which come ready for the registers of a lane (lib/halves.h). Each group of inputs has two columns of
// its own, the rest of which is zero: its sum comes out alone, products exact, and its scale and bias are applied once, in f32.
//
// A chunk is what the four lanes of a weight row load with 16 bytes each; a span is four chunks.
#pragma once
#include "lib/halves.h"

constant uint MMA_SIMDGROUPS = 8;   // of a threadgroup of project_mma, output_mma and experts_gate_up_mma; policy.rs says the same
constant uint MMA_GROUP = 64;       // inputs of a quantisation group

// Inputs of a span.
template <uint BITS> inline uint span_inputs() { return 2048 / BITS; }

// The group of the span whose sums lanes t get in set `set` of columns, see pair_of.
inline uint group_of(uint set, uint t) { return 4 * set + (t ^ set); }

// Weights of lane 4 g + t: of rows g and g + 8 the words of its part of each chunk, and the scale and bias of every group
// whose sums it gets.
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
  uint first = (row * cols + span * span_inputs<BITS>()) / MMA_GROUP;
  for (uint set = 0; set < 8 / BITS; ++set) {
    w.scales[half_at][set] = ly_load_bits(scales + first + group_of(set, lane % 4));
    w.biases[half_at][set] = ly_load_bits(biases + first + group_of(set, lane % 4));
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

// What a lane multiplies of a span's inputs: the operands of its chunk's products, one step after the other; and of every
// group whose products it gets, what those are to be multiplied by.
template <uint BITS> struct SpanInputs {
  uint words[64 / BITS];
  float factors[8 / BITS];
};

// A span of a row in halves, see lib/halves.h.
template <uint BITS>
inline void span_inputs_load(thread SpanInputs<BITS> &in, device const float *halves, uint span, uint lane) {
  device const uint4 *from = (device const uint4 *)(halves + span * span_inputs<BITS>()) + lane;
  for (uint i = 0; i < 16 / BITS; ++i) {
    uint4 four = from[i * 32];
    in.words[4 * i] = four.x;
    in.words[4 * i + 1] = four.y;
    in.words[4 * i + 2] = four.z;
    in.words[4 * i + 3] = four.w;
  }
  for (uint set = 0; set < 8 / BITS; ++set) in.factors[set] = 1.0f;
}

// The sum of every group whose products a lane gets, by products with ones: of four bits, rows g take inputs of lanes t < 2,
// rows g + 8 the others, which belong to other groups.
template <uint BITS> inline void span_sums(thread float *group_sums, thread SpanInputs<BITS> &in, uint lane) {
  uint t = lane % 4;
  bool above = BITS == 8 || t < 2;
  uint one = 0x3c003c00u, sixteen = BITS == 4 ? 0x4c004c00u : one;
  uint a0 = above ? one : 0u, a1 = above ? 0u : one, a2 = above ? sixteen : 0u, a3 = above ? 0u : sixteen;
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint step = 0; step < 32 / BITS; ++step) ly_mma(sums, a0, a1, a2, a3, in.words[2 * step], in.words[2 * step + 1]);
  float first = sums[0] * 256.0f + sums[1] * 0.125f;
  if (BITS == 8) {
    group_sums[0] = first;
  } else {
    float second = sums[2] * 256.0f + sums[3] * 0.125f;
    group_sums[0] = t % 2 == 0 ? first : second;
    group_sums[1] = t % 2 == 0 ? second : first;
  }
}

// Outputs of rows g and g + 8 of each tile from one span: every lane of a row gets them. Tiles share the inputs.
template <uint BITS, uint TILES>
inline void span_products(thread float2 *products, thread SpanWeights<BITS> *w, thread SpanInputs<BITS> &in, uint lane) {
  constexpr uint STEPS = 32 / BITS, SETS = 8 / BITS, CHUNKS = 4 / SETS;
  constexpr uint CHAINS = 2 / TILES;   // two products a simdgroup that need not wait for each other
  uint t = lane % 4, pair = lane / 8;
  for (uint n = 0; n < TILES; ++n) products[n] = float2(0.0f, 0.0f);
  for (uint set = 0; set < SETS; ++set) {
    float sums[TILES * CHAINS][4];
    for (uint n = 0; n < TILES * CHAINS; ++n)
      for (uint c = 0; c < 4; ++c) sums[n][c] = 0.0f;
    for (uint i = 0; i < CHUNKS; ++i) {
      uint chunk = set * CHUNKS + i;
      bool mine = pair_of<BITS>(chunk, t) == pair;
      for (uint step = 0; step < STEPS; ++step) {
        uint2 b = mine ? uint2(in.words[2 * step], in.words[2 * step + 1]) : uint2(0u, 0u);
        uint word = chunk * 4 + step * 4 / STEPS;
        for (uint n = 0; n < TILES; ++n)
          codes_mma<BITS>(sums[n * CHAINS + step % CHAINS], w[n].words[0][word], w[n].words[1][word], step, b);
      }
    }
    // 2^32 and 2^21 undo what codes and activations were divided by.
    for (uint n = 0; n < TILES; ++n) {
      thread float *sum = sums[n * CHAINS];
      for (uint c = 0; c < 4 && CHAINS == 2; ++c) sum[c] += sums[n * CHAINS + CHAINS - 1][c];
      float above = sum[0] * 4294967296.0f + sum[1] * 2097152.0f, below = sum[2] * 4294967296.0f + sum[3] * 2097152.0f;
      for (uint i = 0; i < 2; ++i) ly_anew(w[n].scales[i][set]);   // not before: a scale on its way would be waited for
      products[n] += float2(bfloat_of(w[n].scales[0][set], 0) * above, bfloat_of(w[n].scales[1][set], 0) * below) * in.factors[set];
    }
  }
  // Last, when the registers of the codes are free.
  float group_sums[SETS];
  span_sums<BITS>(group_sums, in, lane);
  for (uint n = 0; n < TILES; ++n) {
    for (uint set = 0; set < SETS; ++set) {
      float sum = group_sums[set] * in.factors[set];
      for (uint i = 0; i < 2; ++i) ly_anew(w[n].biases[i][set]);
      products[n] += float2(bfloat_of(w[n].biases[0][set], 0), bfloat_of(w[n].biases[1][set], 0)) * sum;
    }
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
