// decode: what the kernels of attention over a few rows share.
#pragma once

struct DecodeArgs {
  uint layer, layers, heads_q, heads_kv, stride;
  uint splits;         // parts that a context is cut into, at most
  uint block_tokens;   // positions of a part; 0: context / splits, rounded up
  float scale;         // 1 / sqrt(head_dim)
};

constant uint DECODE_STEP = 16;   // parts begin at multiples of so many positions, which never cross a page

// Positions of a part, the last one's aside.
inline uint part_positions(uint context, uint splits, uint block_tokens) {
  uint size = block_tokens == 0 ? (context + splits - 1) / splits : block_tokens;
  return (size + DECODE_STEP - 1) / DECODE_STEP * DECODE_STEP;
}

// Positions of a row's context that no launch of this pass writes: those before its span.
inline uint settled_positions(uint4 staged, uint row) { return staged.y - (row - staged.w); }
