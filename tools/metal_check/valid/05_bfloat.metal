#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    bfloat b = bfloat(x[i]);
    bfloat c = b * bfloat(2.0f) + 1.0bf;
    float f = c;
    half h = half(b);
    bfloat d = bfloat(h);
    bfloat4 v = bfloat4(float4(f));
    x[i] = f + float(v.y) + float(d) + c * 2.0f;
}
