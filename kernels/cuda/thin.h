// thin: one expert's rows of weights times few rows of activations, on tensor cores, from registers.
//
// With few rows an expert is bound by its weights. So nothing is dequantised: codes enter the products as they are stored, as
// in cuda/span.h, all inputs of a product are of one group, as in cuda/span_rows.h, and a group's scale and bias are applied to
// its sums. Activations are halves already, of which eight rows are the columns of a product; they stay in threadgroup memory,
// and simdgroups go their own ways through the weights, sixteen rows at a time. The words of the next groups are always on
// their way: to the second-level cache a tile ahead, and to registers where others have been multiplied.
#pragma once
#include "cuda/span.h"
#include "lib/grouped.h"

constant uint THIN_ROWS = 32;          // places of a tile, at most; policy.rs says the same, and of the next three
constant uint THIN_THREADS = 512;
constant uint THIN_GATE_INPUTS = 2048; // of a row, at most
constant uint THIN_DOWN_INPUTS = 1024;
constant uint THIN_GROUPS = 8;         // on their way

// Units of eight activations from row to row: so that eight rows are in different banks two by two.
template <uint INPUTS> inline uint thin_stride() { return INPUTS / 8 + 4; }

// The words that a lane multiplies of THIN_GROUPS groups of two rows, and the scales and biases of two of those groups.
struct ThinWeights {
  uint words[THIN_GROUPS][4];
  uint scales[2];
  uint biases[2];
};

// A matrix of weights.
struct ThinMatrix {
  device const uint *codes;
  device const bfloat *scales;
  device const bfloat *biases;
};

// What lane 4 g + t multiplies: rows of one matrix, `above`, and of another or the same one, `below`.
struct ThinPair {
  ThinMatrix above, below;
  uint cols;
};

// The lane's two rows.
struct ThinRows { uint above, below; };

inline void thin_load(thread uint *words, thread const ThinPair &w, ThinRows rows, uint group, uint lane) {
  uint at = group * 4 + lane % 4;
  uint2 above = ly_load_now((device const uint2 *)w.above.codes + (rows.above * (w.cols / 16) + at));
  uint2 below = ly_load_now((device const uint2 *)w.below.codes + (rows.below * (w.cols / 16) + at));
  words[0] = above.x;
  words[1] = above.y;
  words[2] = below.x;
  words[3] = below.y;
}

// Of groups `group` .., a multiple of THIN_GROUPS.
inline void thin_load_numbers(thread uint *scales, thread uint *biases, thread const ThinPair &w, ThinRows rows, uint group, uint lane) {
  uint pairs = w.cols / (2 * MMA_GROUP), at = group / 2 + lane % 4;
  scales[0] = ly_load_now((device const uint *)w.above.scales + (rows.above * pairs + at));
  biases[0] = ly_load_now((device const uint *)w.above.biases + (rows.above * pairs + at));
  scales[1] = ly_load_now((device const uint *)w.below.scales + (rows.below * pairs + at));
  biases[1] = ly_load_now((device const uint *)w.below.biases + (rows.below * pairs + at));
}

inline void thin_load_all(thread ThinWeights &weights, thread const ThinPair &w, ThinRows rows, uint lane) {
#pragma unroll
  for (uint i = 0; i < THIN_GROUPS; ++i) thin_load(weights.words[i], w, rows, i, lane);
  thin_load_numbers(weights.scales, weights.biases, w, rows, 0, lane);
}

// Brings the activations of a tile's places, each a row of x from `from[place]` on, to where thin_multiply looks for them, and
// adds up each of their groups. `count` places are there; the others repeat the last.
template <uint INPUTS>
inline void thin_stage(threadgroup uint4 *staged, threadgroup float *sums, device const half *x, threadgroup const uint *from, uint count,
                       uint cols, uint thread_at) {
  uint units = cols / 8, places = (count + 7) / 8 * 8;
  for (uint i = thread_at; i < places * units; i += THIN_THREADS) {
    uint place = i / units, unit = i % units, group = unit / 8;
    uint4 in = *(device const uint4 *)(x + from[min(place, count - 1)] + unit * 8);
    float sum = 0.0f;
    sum += (half_of(in.x, 0) + half_of(in.x, 1)) + (half_of(in.y, 0) + half_of(in.y, 1));
    sum += (half_of(in.z, 0) + half_of(in.z, 1)) + (half_of(in.w, 0) + half_of(in.w, 1));
    // Inputs that meet under one mask stand side by side: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    uint4 pairs = uint4(ly_pick_bytes(in.x, in.z, 0x5410u), ly_pick_bytes(in.x, in.z, 0x7632u), ly_pick_bytes(in.y, in.w, 0x5410u),
                        ly_pick_bytes(in.y, in.w, 0x7632u));
    staged[place * thin_stride<INPUTS>() + (group * 2 + unit % 2) * 4 + unit % 8 / 2] = pairs;
    // A row is whole groups, so that eight neighbouring threads have one.
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    sum += simd_shuffle_xor(sum, 4);
    if (unit % 8 == 0) sums[group * THIN_ROWS + place] = sum;
  }
}

// Sends for the weights of `count` rows, a line of the second-level cache a lane.
inline void thin_prefetch(device const uint *codes, uint row, uint count, uint cols, uint lane) {
  for (uint word = lane * 32; word < count * cols / 8; word += 32 * 32) ly_prefetch(codes + row * (cols / 8) + word);
}

// acc += products of THIN_GROUPS groups, from `group` on, with 8 N places: acc[n] as ly_mma has it, rows g and g + 8 by places
// 8 n + 2 t and the next. If there is `more`, asks for groups `next` .. of `rows`, a half at a time: a load of each group for
// itself would be waited for with all that were asked for since.
template <uint INPUTS, uint N>
inline void thin_multiply(thread float (*acc)[4], thread ThinWeights &weights, threadgroup const uint4 *staged, threadgroup const float *sums,
                          uint group, bool more, thread const ThinPair &w, ThinRows rows, uint next, uint lane) {
  constexpr uint HALF = THIN_GROUPS / 2;
  uint t = lane % 4, scales[2], biases[2];
  if (more) thin_load_numbers(scales, biases, w, rows, next, lane);
  threadgroup const uint4 *from = staged + lane / 4 * thin_stride<INPUTS>() + group * 8 + t;
#pragma unroll
  for (uint half_at = 0; half_at < THIN_GROUPS; half_at += HALF) {
#pragma unroll
    for (uint i = half_at; i < half_at + HALF; ++i) {
      float part[N][4];
#pragma unroll
      for (uint n = 0; n < N; ++n)
        for (uint c = 0; c < 4; ++c) part[n][c] = 0.0f;
#pragma unroll
      for (uint q = 0; q < 2; ++q) {
        uint above = weights.words[i][q], below = weights.words[i][2 + q], mask = 0x000f000fu;
#pragma unroll
        for (uint n = 0; n < N; ++n) {
          uint4 b = from[n * 8 * thin_stride<INPUTS>() + (i * 2 + q) * 4];
          ly_mma(part[n], above & mask, below & mask, above >> 4 & mask, below >> 4 & mask, b.x, b.y);
          ly_mma(part[n], above >> 8 & mask, below >> 8 & mask, above >> 12 & mask, below >> 12 & mask, b.z, b.w);
        }
      }
      float scale[2], bias[2];
      for (uint h = 0; h < 2; ++h) {
        // 2^24 undoes what codes were divided by.
        scale[h] = bfloat_of(simd_shuffle(weights.scales[h], ushort(lane - t + i / 2)), i % 2) * 16777216.0f;
        bias[h] = bfloat_of(simd_shuffle(weights.biases[h], ushort(lane - t + i / 2)), i % 2);
      }
#pragma unroll
      for (uint n = 0; n < N; ++n) {
        float2 sum = *(threadgroup const float2 *)(sums + (group + i) * THIN_ROWS + n * 8 + t * 2);
        for (uint c = 0; c < 4; ++c)
          acc[n][c] = fma(bias[c / 2], c % 2 == 0 ? sum.x : sum.y, fma(scale[c / 2], part[n][c], acc[n][c]));
      }
    }
    if (more)
#pragma unroll
      for (uint i = half_at; i < half_at + HALF; ++i) thin_load(weights.words[i], w, rows, next + i, lane);
  }
  for (uint h = 0; h < 2; ++h) {
    weights.scales[h] = scales[h];
    weights.biases[h] = biases[h];
  }
}
