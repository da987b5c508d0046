#include <metal_stdlib>
using namespace metal;

template <typename T>
inline float sum(device const T *p, thread const float (&w)[4]) {
    float s = 0;
    for (int j = 0; j < 4; ++j) s += float(p[j]) * w[j];
    return s;
}
kernel void k(device const uchar *b [[buffer(0)]], device float *y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float w[4] = {1, 2, 3, 4};
    device const half *h = (device const half *)(b + 4);
    y[i] = sum(h, w) + sum(reinterpret_cast<device const float *>(b), w);
}
