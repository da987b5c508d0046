// operand: inputs of products, as the kernel that multiplies wants them.
//
// A pass of few rows keeps them as f32: vector kernels calculate in f32 anyway, and a choice of experts that hangs by a
// rounding stays as it was. A pass of many rows narrows them to half for the tiles: eight times finer than bfloat, at
// the same speed. Values beyond its range saturate; a NaN stays one.
#pragma once

inline half narrowed(float value) {
  float low = value < -65504.0f ? -65504.0f : value;
  return half(low > 65504.0f ? 65504.0f : low);
}

// Two of them in one word, the first in the low half.
inline uint narrowed_pair(float first, float second) {
  return uint(as_type<ushort>(narrowed(first))) | uint(as_type<ushort>(narrowed(second))) << 16;
}

// One of two halves in a word: 0 the lower, 1 the upper.
inline float half_of(uint pair, uint which) { return float(as_type<half>(ushort(which == 0 ? pair & 0xffffu : pair >> 16))); }

// Element `at` of a buffer of operands: half if `narrow` is not 0, else f32.
inline void store_operand(device float *to, uint at, float value, uint narrow) {
  if (narrow != 0) ((device half *)to)[at] = narrowed(value);
  else to[at] = value;
}
