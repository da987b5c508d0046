#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    uint u = simd_shuffle_xor(i, 1);
    u += quad_sum(u) + simd_prefix_exclusive_sum(u) + popcount(u) + clz(u) + simd_or(u);
    if (simd_any(u > 3)) u = simd_shuffle_down(u, 2);
    int q = quad_broadcast(int(u), 0);
    x[i] = float(u + uint(q)) + simd_max(x[i]);
}
