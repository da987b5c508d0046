// expect: no matching function for call to 'atomic_fetch_add_explicit'
#include <metal_stdlib>
using namespace metal;

kernel void k(device atomic_ulong *c [[buffer(0)]]) {
    atomic_fetch_add_explicit(c, 1ul, memory_order_relaxed);
}
