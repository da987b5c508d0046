// expect: more than one attribute on 'uint i'
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]] [[thread_index_in_simdgroup]]) {
    x[i] = 0;
}
