// expect: pointer or reference 'p' has no address space
#include <metal_stdlib>
using namespace metal;

float f(const float *p) {
    return p[0];
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = f(x);
}
