// expect: converts between mismatching address spaces
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float *p = (threadgroup float *)x;
    x[i] = p[0];
}
