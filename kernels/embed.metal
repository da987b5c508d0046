#include "dialect/metal.h"
#include "lib/halves.h"
#include "lib/quantised.h"

struct EmbedArgs { uint hidden, group_shift, halves; };   // halves: see lib/halves.h

// embed: a row of the residual stream from the token's row of the embedding.
// Math     residual = W[token]
// Layout   residual [rows, hidden] f32; next [rows, hidden] f32; sums [rows, grid.y] f32.
// Work     a thread a unit of eight values, a simdgroup a threadgroup: one row is spread over several multiprocessors. CHAIN
//          also begins the first norm, see lib/chain.h. Grid: (rows, units / 32).
// Numerics exact f32 of the stored values. Bound by launch.
template <uint BITS, bool CHAIN>
kernel void embed(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                  device const bfloat *biases [[buffer(2)]], device const uint *tokens [[buffer(3)]],
                  device const float *gain [[buffer(4)]], device float *residual [[buffer(5)]],
                  device float *next [[buffer(6)]], device float *sums [[buffer(7)]], constant EmbedArgs &args [[buffer(8)]],
                  uint3 group [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  uint row = group.x, token = tokens[row], units = args.hidden / 8, unit = group.y * 32 + lane;
  float sum = 0.0f;
  if (unit < units) {
    float value[8];
    unit_codes<BITS>(codes + (token * units + unit) * (BITS / 4), value);
    if (BITS < 16) {
      uint at = token * (units >> args.group_shift) + (unit >> args.group_shift);
      float scale = float(scales[at]), bias = float(biases[at]);
      for (uint i = 0; i < 8; ++i) value[i] = scale * value[i] + bias;
    }
    for (uint i = 0; i < 8; ++i) {
      uint at = unit * 8 + i;
      residual[row * args.hidden + at] = value[i];
      if (CHAIN) {
        float input = value[i] * gain[at];
        next[row * args.hidden + at] = input;
        halves_store_both(next, args.halves, row, args.hidden, at, input);
        sum += value[i] * value[i];
      }
    }
  }
  if (CHAIN) {
    sum = simd_sum(sum);
    if (lane == 0) sums[row * grid.y + group.y] = sum;
  }
}
LY_KERNEL(embed_q4, embed<4, false>)
LY_KERNEL(embed_q8, embed<8, false>)
LY_KERNEL(embed_b16, embed<16, false>)
LY_KERNEL(embed_chain_q4, embed<4, true>)
LY_KERNEL(embed_chain_q8, embed<8, true>)
LY_KERNEL(embed_chain_b16, embed<16, true>)
