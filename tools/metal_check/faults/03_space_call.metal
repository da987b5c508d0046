// expect: no matching function for call to 'f'
#include <metal_stdlib>
using namespace metal;

float f(threadgroup const float *p) {
    return p[0];
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = f(x);
}
