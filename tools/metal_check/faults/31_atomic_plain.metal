// expect: no matching function for call to 'atomic_fetch_add_explicit'
#include <metal_stdlib>
using namespace metal;

kernel void k(device uint *c [[buffer(0)]]) {
    atomic_fetch_add_explicit(c, 1u, memory_order_relaxed);
}
