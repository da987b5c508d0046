// expect: with an lvalue of type 'thread half'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    half h = half(x[i]);
    bfloat b = h;
    x[i] = float(b);
}
