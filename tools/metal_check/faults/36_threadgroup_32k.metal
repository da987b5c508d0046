// expect: uses 32776 bytes of threadgroup memory
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float a[4096];
    threadgroup half4 b[2049];
    a[i] = 1;
    b[i] = half4(1.0h);
    x[i] = a[0] + float(b[0].x);
}
