#include <metal_stdlib>
using namespace metal;

kernel void k(device const half4 *x [[buffer(0)]], device half *y [[buffer(1)]],
        threadgroup float *s [[threadgroup(0)]], uint3 g [[threadgroup_position_in_grid]],
        uint3 t [[thread_position_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
        ushort sg [[simdgroup_index_in_threadgroup]]) {
    float4 v = float4(x[g.x * 32 + t.x]);
    float a = simd_sum(dot(v, v));
    if (lane == 0) s[sg] = a;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[g.x] = half(rsqrt(s[0] / 128.0f + 1e-5f));
}
