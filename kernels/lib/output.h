// output: what the kernels of the mixer's output projection share.
#pragma once

struct OutputArgs {
  uint cols, group_shift, batch, x_stride, rows;   // inputs; see lib/quantised.h; rows of x; outputs
  uint head_shift;   // heads of 2^head_shift values lack their norm's factor, eight values at least; 0: x is complete
  float head_share;   // 1 / values of a head
  float eps;
  uint halves;   // of the next kernel's inputs, see lib/halves.h
};

// As in lib/chain.h, head by head: delta_step's tiles leave each head without its norm's factor, and head_squares, the
// sums of four tiles a head, of which it is made; CHAIN variants multiply as they stage their inputs. Factor of the head that
// has input `at` of a row; `squares` of the row.
inline float head_factor(device const float *squares, uint at, constant OutputArgs &args) {
  float4 four = *(device const float4 *)(squares + 4 * (at >> args.head_shift));
  return rsqrt(((four.x + four.y) + (four.z + four.w)) * args.head_share + args.eps);
}
