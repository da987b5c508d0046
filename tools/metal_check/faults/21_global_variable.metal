// expect: variable 'g' must be in the constant address space
#include <metal_stdlib>
using namespace metal;

float g = 1.0f;
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = g;
}
