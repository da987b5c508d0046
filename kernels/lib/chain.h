// chain: how a norm disappears between the kernels around it.
//
// rms(x) * gain = (x * gain) * r with one number r a row. The kernel that completes a row of the residual stream also
// writes x * gain and the sum of squares of the part that its threadgroup made; the kernels that read it add the
// parts up and multiply their result by r. This saves a launch and a dependency level at every norm. Used where a pass
// has few rows; with many, the norm is a kernel of its own.
#pragma once

// r of one row: every lane of the simdgroup gets it. `parts` 0: the input is normalised already.
inline float chain_scale(device const float *sums, uint row, uint parts, uint hidden, float eps, uint lane) {
  if (parts == 0) return 1.0f;
  float sum = 0.0f;
  for (uint i = lane; i < parts; i += 32) sum += sums[row * parts + i];
  return rsqrt(simd_sum(sum) / float(hidden) + eps);
}
