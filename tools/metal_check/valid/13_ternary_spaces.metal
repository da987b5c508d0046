#include <metal_stdlib>
using namespace metal;

kernel void k(device const float4 *x [[buffer(0)]], constant float4 *c [[buffer(1)]], device float4 *y [[buffer(2)]],
        uint i [[thread_position_in_grid]]) {
    threadgroup float4 t[4];
    y[i] = i < 4 ? x[i] : float4(0);
    y[i] += i > 2 ? t[i] : c[i];
    device const float4 *p = i ? x : x + 1;
    y[i] += p->wzyx;
}
