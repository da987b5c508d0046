// expect: 'goto' is not allowed
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i) goto end;
    x[i] = 1;
end:
    return;
}
