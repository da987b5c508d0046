// expect: no member named 'z'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float2 v = float2(x[i]);
    x[i] = v.z;
}
