// expect: call to 'max' is ambiguous
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    half h = half(x[i]);
    x[i] = max(int(i), i) + float(h);
}
