#include <metal_stdlib>
using namespace metal;

struct A {
    uint n;
    float4 v;
    float s[3];
};
kernel void k(constant A &a [[buffer(0)]], device A *o [[buffer(1)]]) {
    A b = a;
    b.n += 1;
    o[1] = b;
    const A c = o[2];
    threadgroup A t;
    t = c;
    o[3] = t;
}
