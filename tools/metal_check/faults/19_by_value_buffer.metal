// expect: [[buffer]] on 'A a', which is passed by value
#include <metal_stdlib>
using namespace metal;

struct A {
    uint n;
};
kernel void k(device float *x [[buffer(0)]], A a [[buffer(1)]]) {
    x[a.n] = 0;
}
