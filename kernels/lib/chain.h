// chain: how a norm disappears between the kernels around it.
//
// rms(x) * gain = (x * gain) * r with one number r a row. The kernel that completes a row of the residual stream also
// writes x * gain and the sum of squares of the part that its threadgroup made; the kernels that read it add the
// parts up and multiply their result by r. This saves a launch and a dependency level at every norm. Used where a pass
// has few rows; with many, the norm is a kernel of its own.
#pragma once

constant uint CHAIN_EACH = 4;   // parts of a lane that are loaded at once

// The parts of one row on their way, so that their latency hides behind the product.
struct ChainParts { float part[CHAIN_EACH]; };

inline ChainParts chain_load(device const float *sums, uint row, uint parts, uint lane) {
  ChainParts load;
  for (uint i = 0; i < CHAIN_EACH; ++i) load.part[i] = lane + 32 * i < parts ? sums[row * parts + lane + 32 * i] : 0.0f;
  return load;
}

// r of the row: every lane of the simdgroup gets it. `parts` 0: the input is normalised already.
inline float chain_scale(ChainParts load, device const float *sums, uint row, uint parts, uint hidden, float eps, uint lane) {
  if (parts == 0) return 1.0f;
  float sum = (load.part[0] + load.part[1]) + (load.part[2] + load.part[3]);
  for (uint i = lane + 32 * CHAIN_EACH; i < parts; i += 32) sum += sums[row * parts + i];
  return rsqrt(simd_sum(sum) / float(hidden) + eps);
}
