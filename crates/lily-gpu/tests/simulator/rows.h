#pragma once
constant uint FULL[2] = {0xffffffffu, 32};

// The sum over a threadgroup, in every lane; `parts` holds one float a simdgroup.
inline float threadgroup_sum(float value, threadgroup float *parts, uint lane, uint simdgroup_at, uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) parts[simdgroup_at] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups && FULL[1] == 32 ? parts[lane] : 0.0f);
}
