// expect: cannot initialize a variable of type 'device float *
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float t[4];
    device float *p = t;
    x[i] = p[0];
}
