// expect: pointer or reference 'p' has no address space
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float a = 1;
    float *p = &a;
    x[i] = *p;
}
