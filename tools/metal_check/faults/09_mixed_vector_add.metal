// expect: invalid operands to binary expression
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float4 v = float4(x[i]);
    half4 h = half4(1.0h);
    x[i] = (v + h).x;
}
