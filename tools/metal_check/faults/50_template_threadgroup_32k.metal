// expect: uses 40960 bytes of threadgroup memory
#include <metal_stdlib>
using namespace metal;

template <uint N>
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float a[N];
    a[i] = 1;
    x[i] = a[0];
}
template [[host_name("k_8192")]] kernel decltype(k<8192>) k<8192>;
template [[host_name("k_10240")]] kernel decltype(k<10240>) k<10240>;
