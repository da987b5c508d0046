// expect: [[thread_position_in_grid]] must be ushort or uint
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], int i [[thread_position_in_grid]]) {
    x[i] = 0;
}
