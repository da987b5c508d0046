// halves: inputs of products of few rows as cuda/span.h multiplies them, written by whoever makes the inputs.
//
// An input is two halves, x * 2^-8 rounded and what that misses times 2^11, together 22 bits. A buffer of inputs holds them
// three times: plain, [rows, cols] f32, for kernels that want those; `halves` values further on in the order of codes of four
// bits, and as far again in that of eight. A word of codes, masked, gives pairs of codes that are not neighbours, and what its
// mask leaves 2^s too large meets an input 2^-s as large.
//
// A span is what one simdgroup multiplies, a chunk a fourth of it, a quarter of which is a lane's: lane 8 pair + t has what
// lane t of a weight row multiplies in one chunk of the span, lane 8 pair + t + 4 what that misses. Which chunk: the one whose
// groups have columns 2 pair and 2 pair + 1 of a product, see chunk_of. Words of a lane are 16 bytes, then those of the next.
#pragma once
#include "lib/operand.h"

// The columns, in pairs, of the group that lanes t of a chunk have. Four bits: a chunk has two groups, and two chunks four
// columns; in the second two, groups change places, so that every lane has inputs in one chunk of the four.
template <uint BITS> inline uint pair_of(uint chunk, uint t) { return BITS == 4 ? chunk % 2 * 2 + (t / 2 ^ chunk / 2) : chunk; }

// Writes input `at` of a row. `halves`: of the row and of these bits.
template <uint BITS> inline void halves_store(device float *halves, uint at, float value) {
  constexpr uint SPAN = 2048 / BITS, CHUNK = SPAN / 4, QUARTER = CHUNK / 4, WORD = 32 / BITS;
  uint chunk = at % SPAN / CHUNK, t = at % CHUNK / QUARTER, within = at % QUARTER, code = within % WORD;
  uint step = BITS == 4 ? within / WORD * 2 + code % 4 / 2 : within / WORD, word = step * 2 + code % 2;
  uint place = (at / SPAN * SPAN + word / 4 * 128 + (pair_of<BITS>(chunk, t) * 8 + t) * 4 + word % 4) * 2 + code / (WORD / 2);
  float scaled = value * (BITS == 4 && code % 2 == 1 ? 0.000244140625f : 0.00390625f);
  device half *to = (device half *)halves + place;
  half whole = narrowed(scaled);
  to[0] = whole;
  to[32] = narrowed((scaled - float(whole)) * 2048.0f);
}

// Input `at` of row `row` in both orders, to a buffer of rows of `cols` inputs; `halves` 0: nobody wants them.
inline void halves_store_both(device float *inputs, uint halves, uint row, uint cols, uint at, float value) {
  if (halves == 0) return;
  halves_store<4>(inputs + halves + row * cols, at, value);
  halves_store<8>(inputs + 2 * halves + row * cols, at, value);
}
