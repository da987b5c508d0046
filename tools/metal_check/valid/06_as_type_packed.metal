#include <metal_stdlib>
using namespace metal;

struct P {
    packed_float3 p;
    packed_half4 q;
};
static_assert(sizeof(P) == 20);
kernel void k(device P *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float3 v = x[i].p;
    v.x += as_type<float>(0x3f800000u);
    uchar4 u = as_type<uchar4>(as_type<uint>(v.y));
    x[i].p = v * float(u.z);
    x[i].q = half4(1.0h);
}
