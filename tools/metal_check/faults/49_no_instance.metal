// expect: kernel template 'k' has no explicit instance
#include <metal_stdlib>
using namespace metal;

template <uint N>
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = float(N);
}
