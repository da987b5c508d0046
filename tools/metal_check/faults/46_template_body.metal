// expect: member reference base type 'device float' is not a structure
#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void k(device T *x [[buffer(0)]]) {
    x[0] = x[1].w;
}
template [[host_name("k_f")]] kernel void k<float>(device float *);
