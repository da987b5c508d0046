// expect: unknown attribute 'thread_position_in_block'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_block]]) {
    x[i] = 0;
}
