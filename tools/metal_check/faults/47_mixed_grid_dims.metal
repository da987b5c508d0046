// expect: grid attributes differ in dimension
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint3 g [[threadgroup_position_in_grid]],
        uint t [[thread_position_in_threadgroup]]) {
    x[g.x + t] = 0;
}
