// vector: products of a few rows of activations with weight rows, a simdgroup a weight row.
//
// A lane owns PL consecutive inputs of a slice of 32 * PL, at most one quantisation group: its codes are one wide load,
// with one scale and one bias. Activations come through threadgroup memory, padded so that lanes do not collide, and stay
// in registers while several weight rows pass. Codes are masked where they stand, without a shift: activation i of a word
// is divided by 16^(i % 4), which is exact.
#pragma once
constant uint STAGE_VALUES = 2048;   // activations in threadgroup memory, of all rows together

// Threads of a threadgroup; policy.rs says the same.
constant uint PROJECT_THREADS = 256;
constant uint OUTPUT_THREADS = 512;

// Where value `i` of a staged row stands.
template <uint PL> inline uint staged_at(uint i) { return i / PL * (PL + 4) + i % PL; }

// A thread's part of staged rows on its way, four values each time.
template <uint THREADS> struct StagedValues { float4 fours[STAGE_VALUES / (4 * THREADS)]; };

// Loads values base .. base + count of rows row0 .. row0 + ROWS; zeros behind `cols` inputs. Rows behind the last one repeat it.
template <uint ROWS, uint THREADS>
inline void rows_load(thread StagedValues<THREADS> &values, device const float *x, uint stride, uint row0, uint batch, uint base,
                      uint cols, uint thread_at) {
  constexpr uint COUNT = STAGE_VALUES / ROWS, EACH = STAGE_VALUES / (4 * THREADS);
  for (uint i = 0; i < EACH; ++i) {
    uint at = (i * THREADS + thread_at) * 4, row = at / COUNT, column = base + at % COUNT;
    values.fours[i] = float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < cols) values.fours[i] = *(device const float4 *)(x + min(row0 + row, batch - 1) * stride + column);
  }
}

// Puts them into `staged`, [ROWS, count] padded.
template <uint PL, uint ROWS, uint THREADS>
inline void rows_store(threadgroup float *staged, thread const StagedValues<THREADS> &values, uint thread_at) {
  constexpr uint COUNT = STAGE_VALUES / ROWS, EACH = STAGE_VALUES / (4 * THREADS);
  for (uint i = 0; i < EACH; ++i) {
    uint at = (i * THREADS + thread_at) * 4, row = at / COUNT;
    *(threadgroup float4 *)(staged + row * (COUNT / PL * (PL + 4)) + staged_at<PL>(at % COUNT)) = values.fours[i];
  }
}

template <uint PL, uint ROWS, uint THREADS>
inline void stage_rows(threadgroup float *staged, device const float *x, uint stride, uint row0, uint batch, uint base, uint cols,
                       uint thread_at) {
  StagedValues<THREADS> values;
  rows_load<ROWS, THREADS>(values, x, stride, row0, batch, base, cols, thread_at);
  rows_store<PL, ROWS, THREADS>(staged, values, thread_at);
}

// This lane's activations of one slice, scaled for codes that are masked in place; returns their plain sum.
template <uint BITS, uint PL> inline float lane_values(threadgroup const float *from, thread float *values) {
  float total = 0.0f;
  for (uint i = 0; i < PL / 4; ++i) {
    float4 four = *(threadgroup const float4 *)(from + 4 * i);
    total += (four.x + four.y) + (four.z + four.w);
    values[4 * i] = four.x;
    values[4 * i + 1] = BITS == 4 ? four.y * 0.0625f : four.y;
    values[4 * i + 2] = BITS == 4 ? four.z * 0.00390625f : four.z;
    values[4 * i + 3] = BITS == 4 ? four.w * 0.000244140625f : four.w;
  }
  return total;
}

// A lane's inputs of one weight row.
template <uint BITS, uint PL> struct LaneWeights {
  uint words[PL * BITS / 32];
  float scale;
  float bias;
};

// Inputs at .. at + PL of weight row `row`.
template <uint BITS, uint PL>
inline LaneWeights<BITS, PL> lane_weights(device const uint *codes, device const bfloat *scales, device const bfloat *biases, uint row,
                                          uint at, uint cols, uint group_shift) {
  constexpr uint WORDS = PL * BITS / 32;
  LaneWeights<BITS, PL> w;
  device const uint *from = codes + row * (cols * BITS / 32) + at * BITS / 32;
  if (WORDS >= 4) {
    for (uint i = 0; i < WORDS / 4; ++i) {
      uint4 four = ((device const uint4 *)from)[i];
      w.words[4 * i] = four.x;
      w.words[4 * i + 1] = four.y;
      w.words[4 * i + 2] = four.z;
      w.words[4 * i + 3] = four.w;
    }
  } else if (WORDS == 2) {
    uint2 two = *(device const uint2 *)from;
    w.words[0] = two.x;
    w.words[WORDS - 1] = two.y;
  } else {
    w.words[0] = from[0];
  }
  w.scale = 1.0f;
  w.bias = 0.0f;
  if (BITS < 16) {
    uint group = row * (cols / 8 >> group_shift) + (at / 8 >> group_shift);
    w.scale = float(scales[group]);
    w.bias = float(biases[group]);
  }
  return w;
}

// Their product with this lane's activations.
template <uint BITS, uint PL> inline float lane_dot(thread const LaneWeights<BITS, PL> &w, thread const float *values, float total) {
  float even = 0.0f, odd = 0.0f;
  for (uint i = 0; i < PL * BITS / 32; ++i) {
    uint word = w.words[i];
    if (BITS == 4) {
      uint high = word >> 16;
      even += float(word & 0xfu) * values[8 * i];
      odd += float(word & 0xf0u) * values[8 * i + 1];
      even += float(word & 0xf00u) * values[8 * i + 2];
      odd += float(word & 0xf000u) * values[8 * i + 3];
      even += float(high & 0xfu) * values[8 * i + 4];
      odd += float(high & 0xf0u) * values[8 * i + 5];
      even += float(high & 0xf00u) * values[8 * i + 6];
      odd += float(high & 0xf000u) * values[8 * i + 7];
    } else if (BITS == 8) {
      even += float(word & 255u) * values[4 * i];
      odd += float((word >> 8) & 255u) * values[4 * i + 1];
      even += float((word >> 16) & 255u) * values[4 * i + 2];
      odd += float(word >> 24) * values[4 * i + 3];
    } else {
      even += as_type<float>(word << 16) * values[2 * i];
      odd += as_type<float>(word & 0xffff0000u) * values[2 * i + 1];
    }
  }
  return w.scale * (even + odd) + w.bias * total;
}
