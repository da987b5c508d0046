// expect: recursive function 'f'
#include <metal_stdlib>
using namespace metal;

int g(int n);
int f(int n) {
    return n ? g(n - 1) : 0;
}
int g(int n) {
    return n ? f(n - 1) : 1;
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = f(int(i));
}
