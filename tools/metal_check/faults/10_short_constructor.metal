// expect: no matching constructor for initialization of 'thread float4'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float4 v = float4(x[i], 1.0f, 2.0f);
    x[i] = v.x;
}
