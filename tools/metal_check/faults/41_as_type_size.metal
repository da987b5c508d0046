// expect: as_type: sizes differ
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    half h = as_type<half>(x[i]);
    x[i] = float(h);
}
