// span_rows: sixteen weight rows times SPAN inputs by one simdgroup on tensor cores, for up to four rows of activations.
//
// The products of span.h in another layout. All inputs of a product are of one group; its eight columns are four rows of
// activations, what they are and what that misses side by side. So lane 4 g + t gets the sums of a whole group for weight
// rows g and g + 8 with activations t, applies scale and bias once a group, and adds up alone: four rows take as many
// products as span.h needs for one. The four lanes of a weight row share each group's words, and ask each other for scales.
#pragma once
#include "cuda/span.h"

constant uint MMA_INPUTS = 4096;    // of a row of activations that is staged, at most
constant uint ROWS_INPUTS = 2048;   // of a row of activations in project_mma_rows, at most; policy.rs says the same

// Groups of a span, products of a group.
template <uint BITS> inline uint span_groups() { return 32 / BITS; }
constant uint GROUP_STEPS = 4;

// Weights of lane 4 g + t: of rows g and g + 8 its part of each group's words, and of two of their groups the scales and
// biases, the first in the low half: groups 2 t and 2 t + 1, where the span has so many.
template <uint BITS> struct RowsWeights {
  uint words[2][16];
  uint scales[2];
  uint biases[2];
};

// Row `row` of a matrix as the lane's upper (0) or lower (1) one; `span` along the row.
template <uint BITS>
inline void rows_load(thread RowsWeights<BITS> &w, uint half_at, device const uint *codes, device const bfloat *scales,
                      device const bfloat *biases, uint row, uint span, uint cols, uint lane) {
  device const uint *from = codes + row * (cols * BITS / 32) + span * 64 + lane % 4 * (BITS / 2);
  for (uint group = 0; group < span_groups<BITS>(); ++group, from += 2 * BITS) {
    thread uint *words = w.words[half_at] + group * (BITS / 2);
    if (BITS == 4) {
      uint2 two = ly_load_now((device const uint2 *)from);
      words[0] = two.x;
      words[1] = two.y;
    } else {
      uint4 four = ly_load_now((device const uint4 *)from);
      words[0] = four.x;
      words[1] = four.y;
      words[2] = four.z;
      words[3] = four.w;
    }
  }
  uint first = (row * cols + span * span_inputs<BITS>()) / MMA_GROUP + lane * 2 % span_groups<BITS>();
  w.scales[half_at] = ly_load_now((device const uint *)(scales + first));
  w.biases[half_at] = ly_load_now((device const uint *)(biases + first));
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

// Eight inputs of one of ROWS rows, where rows_product looks for them, and with the lanes beside it the sum of their group.
template <uint BITS, uint ROWS>
inline void rows_inputs_stage(threadgroup uint4 *staged, threadgroup float *sums, Inputs in, uint row, uint at, uint lane) {
  uint step = at / MMA_GROUP * GROUP_STEPS + at % 16 / 4;
  threadgroup uint4 *to = staged + (step * ROWS + row) * 4 + at % MMA_GROUP / 16;
  steps_stage<BITS>(to, ROWS * 4, in.low * 0.00390625f, in.high * 0.00390625f);
  float sum = group_sum(in);
  if (lane % 8 == 0) sums[at / MMA_GROUP * ROWS + row] = sum;
}

// `rows` rows of `cols` inputs, `stride` apart, by all threads of the threadgroup: where rows_product looks for them, and
// the sum of each group and row. The loads of EACH rows are on their way together.
template <uint BITS, uint ROWS, uint EACH>
inline void rows_stage(threadgroup uint4 *staged, threadgroup float *sums, device const float *x, uint stride, uint cols, uint rows,
                       uint thread_at, uint threads, uint lane) {
  for (uint first = 0; first < rows; first += EACH) {
    // Rows are whole spans: all lanes of a simdgroup are inside, or none.
    for (uint at = thread_at * 8; at < cols; at += threads * 8) {
      Inputs in[EACH];
      for (uint i = 0; i < EACH; ++i) in[i] = inputs_load(x + min(first + i, rows - 1) * stride, at);
      for (uint i = 0; i < EACH; ++i)
        if (first + i < rows) rows_inputs_stage<BITS, ROWS>(staged, sums, in[i], first + i, at, lane);
    }
  }
}

// Outputs of the lane's upper and lower weight row with activations lane % 4 from one span. `staged` and `sums` of whole
// rows, `rows` of them; lanes without a row get zeros.
template <uint BITS, uint ROWS>
inline float2 rows_product(thread const RowsWeights<BITS> &w, threadgroup const uint4 *staged, threadgroup const float *sums, uint span,
                           uint rows, uint lane) {
  uint t = lane % 4, column = lane / 4, first = span * span_groups<BITS>();
  bool there = column / 2 < rows;
  threadgroup const uint2 *from =
      (threadgroup const uint2 *)(staged + (first * GROUP_STEPS * ROWS + column / 2) * 4 + t) + column % 2;
  float upper = 0.0f, lower = 0.0f;
  uint scales[2], biases[2];
  for (uint group = 0; group < span_groups<BITS>(); ++group) {
    for (uint i = 0; i < 2 && group % 2 == 0; ++i) {
      scales[i] = simd_shuffle(w.scales[i], lane - t + group / 2);
      biases[i] = simd_shuffle(w.biases[i], lane - t + group / 2);
    }
    // Two chains, so that a product need not wait for the one before it.
    float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint step = 0; step < GROUP_STEPS; ++step) {
      uint2 b = there ? from[(group * GROUP_STEPS + step) * ROWS * 8] : uint2(0u, 0u);
      uint word = group * (BITS / 2) + step * BITS / 8, a0 = w.words[0][word], a1 = w.words[1][word];
      codes_mma<BITS>(step % 2 == 0 ? even : odd, a0, a1, step, b);
    }
    // 2^32 and 2^21 undo what codes and activations were divided by.
    float sum = t < rows ? sums[(first + group) * ROWS + t] : 0.0f;
    float above = (even[0] + odd[0]) * 4294967296.0f + (even[1] + odd[1]) * 2097152.0f;
    float below = (even[2] + odd[2]) * 4294967296.0f + (even[3] + odd[3]) * 2097152.0f;
    upper += bfloat_of(scales[0], group % 2) * above + bfloat_of(biases[0], group % 2) * sum;
    lower += bfloat_of(scales[1], group % 2) * below + bfloat_of(biases[1], group % 2) * sum;
  }
  return float2(upper, lower);
}

// Puts a simdgroup's outputs of its span into `partial`, [simdgroups][ROWS][16]; a barrier makes them visible to all.
template <uint ROWS>
inline void rows_store(threadgroup float *partial, float2 product, uint rows, uint simdgroup_at, uint lane) {
  uint t = lane % 4, at = (simdgroup_at * ROWS + t) * 16 + lane / 4;
  if (t < rows) {
    partial[at] = product.x;
    partial[at + 8] = product.y;
  }
}

// `sum` plus output `at` of `tile` and row `row`, from the simdgroups that have its spans, one after the other.
template <uint ROWS>
inline float rows_add(float sum, threadgroup const float *partial, uint tile, uint spans, uint row, uint at) {
  for (uint i = 0; i < spans; ++i) sum += partial[((tile * spans + i) * ROWS + row) * 16 + at];
  return sum;
}
