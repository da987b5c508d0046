#include <metal_stdlib>
using namespace metal;

[[kernel, max_total_threads_per_threadgroup(256)]] void k(device float *x [[buffer(0)]], constant uint *n [[buffer(1)]],
        uint2 g [[thread_position_in_grid]], uint2 s [[threads_per_grid]]) {
    if (g.x < n[0]) x[g.y * s.x + g.x] = precise::exp(x[0]) + fast::log(x[1]) + metal::precise::sqrt(M_PI_F) - INFINITY;
}
