// expect: no member named 'xg'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float4 v = float4(x[i]);
    x[i] = v.xg.x;
}
