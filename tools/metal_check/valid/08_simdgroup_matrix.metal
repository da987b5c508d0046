#include <metal_stdlib>
using namespace metal;

kernel void k(device const half *a [[buffer(0)]], device float *y [[buffer(1)]]) {
    threadgroup half t[64];
    simdgroup_half8x8 A;
    simdgroup_matrix<half, 8, 8> B;
    simdgroup_float8x8 C = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(A, a, 8);
    simdgroup_load(B, t, 8, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(C, A, B, C);
    thread auto &e = C.thread_elements();
    e[0] += 1;
    simdgroup_store(C, y, 8);
    simdgroup_barrier(mem_flags::mem_none);
}
