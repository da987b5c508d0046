// expect: no matching function for call to 'simdgroup_multiply_accumulate'
#include <metal_stdlib>
using namespace metal;

kernel void k(device half *a [[buffer(0)]]) {
    simdgroup_half8x8 A, C;
    simdgroup_multiply_accumulate(C, A, a, C);
}
