#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float4 a = float4(x[i]);
    half4 h = half4(a);
    a.xy = a.zw * 2.0f;
    a.wzyx += float4(h);
    bool4 m = a < float4(1, 2, 3, 4);
    x[i] = select(a, float4(0), m).r + (any(m) ? a.x : 0);
}
