// expect: buffer index 31 is above 30
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(31)]]) {
    x[0] = 0;
}
