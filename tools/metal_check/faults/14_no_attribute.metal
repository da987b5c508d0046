// expect: 'uint n' is passed by value without an attribute
#include <metal_stdlib>
using namespace metal;

kernel void k(device float *x [[buffer(0)]], uint n) {
    x[n] = 0;
}
