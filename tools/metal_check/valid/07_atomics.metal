#include <metal_stdlib>
using namespace metal;

kernel void k(device atomic_uint *c [[buffer(0)]], device atomic<float> *f [[buffer(1)]],
        uint i [[thread_position_in_grid]]) {
    threadgroup atomic_int n;
    atomic_store_explicit(&n, 0, memory_order_relaxed);
    atomic_fetch_max_explicit(&n, int(i), memory_order_relaxed);
    atomic_fetch_add_explicit(f, 1.0f, memory_order_relaxed);
    atomic_fetch_add_explicit(&c[i], 1u, memory_order_relaxed);
}
