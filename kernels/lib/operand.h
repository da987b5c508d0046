// operand: inputs of products, as the kernel that multiplies wants them.
//
// A pass of few rows keeps them as f32: vector kernels calculate in f32 anyway, and a choice of experts that hangs by a
// rounding stays as it was. A pass of many rows narrows them to half for the tiles: eight times finer than bfloat, at
// the same speed. Values beyond its range saturate; a NaN stays one.
#pragma once

constant uint NO_ROW = 0xffffffffu;   // of activations: zeros

inline float saturated(float value) {
  float low = value < -65504.0f ? -65504.0f : value;
  return low > 65504.0f ? 65504.0f : low;
}
inline half narrowed(float value) { return half(saturated(value)); }

// Two of them in one word, the first in the low half.
inline uint narrowed_pair(float first, float second) {
  return uint(as_type<ushort>(narrowed(first))) | uint(as_type<ushort>(narrowed(second))) << 16;
}

// One of two halves in a word: 0 the lower, 1 the upper.
inline float half_of(uint pair, uint which) { return float(as_type<half>(ushort(which == 0 ? pair & 0xffffu : pair >> 16))); }

// What is left of two floats where they were rounded to `packed`.
inline uint pack_missed(float low, float high, uint packed) {
  return ly_pack2(low - half_of(packed, 0), high - half_of(packed, 1));
}

// Four neighbours of a buffer of operands from element `at` on, a multiple of four.
inline void store_operands(device float *to, uint at, float4 values, uint narrow) {
  if (narrow != 0) {
    *(device uint2 *)((device half *)to + at) =
        uint2(ly_pack2(saturated(values.x), saturated(values.y)), ly_pack2(saturated(values.z), saturated(values.w)));
  } else {
    *(device float4 *)(to + at) = values;
  }
}

// x sigmoid(x), with one over 1 + e^-x as a square of its inverse root: a division takes several times its instructions.
inline float silu(float x) {
  float root = rsqrt(1.0f + exp(-x));
  return x * root * root;
}

// Element `at` of a buffer of operands: half if `narrow` is not 0, else f32.
inline void store_operand(device float *to, uint at, float value, uint narrow) {
  if (narrow != 0) ((device half *)to)[at] = narrowed(value);
  else to[at] = value;
}
