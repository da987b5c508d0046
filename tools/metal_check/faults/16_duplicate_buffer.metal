// expect: buffer(0) is used twice
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], device float *y [[buffer(0)]]) {
    x[0] = y[0];
}
