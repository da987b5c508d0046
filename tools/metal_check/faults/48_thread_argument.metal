// expect: a kernel argument cannot point to thread memory
#include <metal_stdlib>
using namespace metal;

kernel void k(thread float *x [[buffer(0)]]) {
    x[0] = 0;
}
