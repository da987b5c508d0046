// expect: simdgroup_matrix is 8x8
#include <metal_stdlib>
using namespace metal;

kernel void k(device half *a [[buffer(0)]]) {
    simdgroup_matrix<half, 4, 4> A;
    simdgroup_load(A, a, 4);
}
