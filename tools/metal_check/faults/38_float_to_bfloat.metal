// expect: implicit conversion from 'float' to bfloat
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    bfloat b = x[i];
    x[i] = float(b);
}
