// expect: [[thread_index_in_simdgroup]] must be ushort or uint
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint2 i [[thread_index_in_simdgroup]]) {
    x[i.x] = 0;
}
