// expect: threadgroup variable 'a' outside a kernel
#include <metal_stdlib>
using namespace metal;

void f(uint i) {
    threadgroup float a[4];
    a[i] = 1;
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    f(i);
    x[i] = 0;
}
