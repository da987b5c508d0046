// expect: call to 'simd_sum' is ambiguous
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    ulong u = i;
    u = simd_sum(u);
    x[i] = float(u);
}
