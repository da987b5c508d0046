// warpgroup: 128 weight rows times N rows of activations by two groups of four simdgroups (wgmma of Hopper GPUs).
//
// Weights go from memory to registers, are dequantised there, rounded to half once, and are the first operand as they are;
// activations are the second, in threadgroup memory, copied one step of 64 inputs ahead. A step is one quantisation group,
// so that a lane needs one scale and one bias a row. A lane keeps the part of each word that the operand wants of it: the
// four lanes of a row load the same words, which costs a load but no memory bandwidth.
#pragma once
#include "lib/operand.h"

constant uint WG_ROWS = 128;      // weight rows of a threadgroup
constant uint WG_THREADS = 256;
constant uint WG_K = 64;          // inputs of a step, and of a quantisation group

// Weights are multiplied by 64 so that their scales are normal halfs; results are divided by it.
constant float WG_GAIN = 64.0f;

// The two weight rows of a lane (4 g + t: rows g and g + 8 of its simdgroup's sixteen), from their first input on.
struct WgWeights {
  device const uint *upper_codes;
  device const uint *lower_codes;
  device const bfloat *upper_scales;
  device const bfloat *lower_scales;
  device const bfloat *upper_biases;
  device const bfloat *lower_biases;
};

// Rows of one or two matrices with the same number of inputs.
inline WgWeights wg_weights(device const uint *upper_codes, device const bfloat *upper_scales, device const bfloat *upper_biases,
                            uint upper, device const uint *lower_codes, device const bfloat *lower_scales,
                            device const bfloat *lower_biases, uint lower, uint cols) {
  WgWeights w;
  w.upper_codes = upper_codes + upper * (cols / 8);
  w.upper_scales = upper_scales + upper * (cols / WG_K);
  w.upper_biases = upper_biases + upper * (cols / WG_K);
  w.lower_codes = lower_codes + lower * (cols / 8);
  w.lower_scales = lower_scales + lower * (cols / WG_K);
  w.lower_biases = lower_biases + lower * (cols / WG_K);
  return w;
}

// One step of both rows.
struct WgStep {
  uint words[2][8];
  float scales[2];
  float biases[2];
};

inline void wg_row_load(thread uint *words, device const uint *from) {
  for (uint i = 0; i < 2; ++i) {
    uint4 four = ((device const uint4 *)from)[i];
    words[4 * i] = four.x;
    words[4 * i + 1] = four.y;
    words[4 * i + 2] = four.z;
    words[4 * i + 3] = four.w;
  }
}

inline void wg_load(thread WgStep &step, thread const WgWeights &w, uint k) {
  wg_row_load(step.words[0], w.upper_codes + k / 8);
  wg_row_load(step.words[1], w.lower_codes + k / 8);
  step.scales[0] = float(w.upper_scales[k / WG_K]);
  step.scales[1] = float(w.lower_scales[k / WG_K]);
  step.biases[0] = float(w.upper_biases[k / WG_K]);
  step.biases[1] = float(w.lower_biases[k / WG_K]);
}

// What a thread copies of every step: 16 bytes of each of EACH rows.
template <uint N> struct WgCopies { uint from[(N + 31) / 32]; };

// `rows[i]`: the row of x, or NO_ROW for zeros, which are written here once and stay.
template <uint N>
inline void wg_copies(thread WgCopies<N> &copies, threadgroup ly_swizzled<N> *tiles, threadgroup const uint *rows, uint stride,
                      uint thread_at) {
  for (uint i = 0; i < (N + 31) / 32; ++i) {
    uint row = i * 32 + thread_at / 8, part = thread_at % 8;
    copies.from[i] = NO_ROW;
    if (row < N) {
      if (rows[row] != NO_ROW) {
        copies.from[i] = rows[row] * stride + part * 8;
      } else {
        *(threadgroup uint4 *)ly_swizzled_at(tiles[0], row, part) = uint4(0u, 0u, 0u, 0u);
        *(threadgroup uint4 *)ly_swizzled_at(tiles[1], row, part) = uint4(0u, 0u, 0u, 0u);
      }
    }
  }
}

// Brings inputs k .. k + 64 of the rows of activations.
template <uint N>
inline void wg_copy(threadgroup ly_swizzled<N> &to, thread const WgCopies<N> &copies, device const half *x, uint k, uint thread_at) {
  for (uint i = 0; i < (N + 31) / 32; ++i)
    if (copies.from[i] != NO_ROW) ly_copy16(ly_swizzled_at(to, i * 32 + thread_at / 8, thread_at % 8), x + copies.from[i] + k);
  ly_copy_commit();
}

// Codes 2 t and 2 t + 1 of a word as halves, scaled.
inline uint wg_pair(uint word, uint t, uint scale, uint bias) {
  uint two = word >> (8 * t) & 0xffu;
  return ly_dequantise2(two * 0x1001u & 0x000f000fu, scale, bias);
}

// A step's weights as the first operands of its four products.
inline void wg_operands(thread uint *a, thread const WgStep &step, uint t) {
  for (uint half_at = 0; half_at < 2; ++half_at) {
    uint scale = ly_pack2(step.scales[half_at] * WG_GAIN, step.scales[half_at] * WG_GAIN);
    uint bias = ly_pack2(step.biases[half_at] * WG_GAIN, step.biases[half_at] * WG_GAIN);
    for (uint i = 0; i < 8; ++i) a[i / 2 * 4 + i % 2 * 2 + half_at] = wg_pair(step.words[half_at][i], t, scale, bias);
  }
}

template <uint N> inline void wg_products(thread float *acc, thread const uint *a, threadgroup const ly_swizzled<N> &tile) {
  for (uint i = 0; i < 4; ++i) ly_wgmma<N>(acc, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], tile, i);
}

// acc += W x[rows]^T times WG_GAIN: acc[4 j + c] is of the upper row with activation row 8 j + 2 t + c, c < 2, acc[4 j + 2 + c]
// of the lower one. All threads call it.
template <uint N>
inline void wg_multiply(thread float *acc, threadgroup ly_swizzled<N> *tiles, threadgroup const uint *rows, device const half *x,
                        uint stride, thread const WgWeights &w, uint cols, uint thread_at) {
  uint t = thread_at % 4, now = 0;
  WgStep step;
  wg_load(step, w, 0);
  WgCopies<N> copies;
  wg_copies<N>(copies, tiles, rows, stride, thread_at);
  wg_copy<N>(tiles[0], copies, x, 0, thread_at);
  for (uint k = 0; k < cols; k += WG_K) {
    ly_copy_wait<0>();
    ly_wgmma_see();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint a[16];
    wg_operands(a, step, t);
    if (k + WG_K < cols) {
      wg_load(step, w, k + WG_K);
      wg_copy<N>(tiles[1 - now], copies, x, k + WG_K, thread_at);
    }
    ly_wgmma_begin();
    wg_products<N>(acc, a, tiles[now]);
    ly_wgmma_end<N>(acc);
    now = 1 - now;
  }
}

// Writes results of N rows from `row0` on, of which `batch` are there, to the columns of the lane's upper and lower weight
// row, of which `columns` are there; ADD: onto what is there.
template <uint N, bool ADD>
inline void wg_store(thread const float *acc, device float *out, uint stride, uint row0, uint batch, uint upper, uint lower, uint columns,
                     uint lane) {
  // Loads behind a store wait for it, since it may be to the same place: so some are on their way together.
  constexpr uint TOGETHER = N / 4 < 16 ? N / 4 : 16;
  uint first = row0 + lane % 4 * 2, there = first < batch ? batch - first : 0;
#pragma unroll
  for (uint half_at = 0; half_at < 2; ++half_at) {
    uint column = half_at == 0 ? upper : lower;
    if (column < columns) {
      device float *to = out + first * stride + column;
#pragma unroll
      for (uint i = 0; i < N / 4; i += TOGETHER) {
        float before[TOGETHER];
        for (uint j = i; j < i + TOGETHER; ++j) {
          uint row = j / 2 * 8 + j % 2;
          before[j - i] = ADD && row < there ? to[row * stride] : 0.0f;
        }
        for (uint j = i; j < i + TOGETHER; ++j) {
          uint row = j / 2 * 8 + j % 2;
          float value = acc[j / 2 * 4 + half_at * 2 + j % 2] * (1.0f / WG_GAIN);
          if (row < there) to[row * stride] = ADD ? before[j - i] + value : value;
        }
      }
    }
  }
}
