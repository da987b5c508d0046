// expect: needs [[threadgroup(n)]], not [[buffer]]
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], threadgroup float *s [[buffer(1)]]) {
    x[0] = s[0];
}
