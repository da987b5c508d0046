// expect: pointer or reference 'p' has no address space
#include <metal_stdlib>
using namespace metal;

void f(float &p) {
    p = 1;
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float a;
    f(a);
    x[i] = a;
}
