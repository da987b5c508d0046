// expect: recursive function 'f'
#include <metal_stdlib>
using namespace metal;

int f(int n) {
    return n < 2 ? 1 : n * f(n - 1);
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = f(int(i));
}
