#include <metal_stdlib>
using namespace metal;

template <typename T, int N>
kernel void scale(device T *x [[buffer(0)]], constant float &f [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    threadgroup T tile[N][4];
    tile[i % N][0] = x[i];
    x[i] = T(float(tile[i % N][0]) * f);
}
template [[host_name("scale_f32")]] kernel void scale<float, 8>(device float *, constant float &, uint);
template [[host_name("scale_bf16")]] [[kernel]] decltype(scale<bfloat, 8>) scale<bfloat, 8>;
