#include <metal_stdlib>
using namespace metal;

#define INSTANCE(entry, ...) template [[host_name(#entry)]] kernel decltype(__VA_ARGS__) __VA_ARGS__;

struct Args {
    uint rows, stride;
};
template <uint ROWS, bool ADD>
kernel void scale(device const bfloat *x [[buffer(0)]], device float *y [[buffer(1)]],
        constant Args &args [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shared[ROWS * 32];
    for (uint r = 0; r < ROWS; ++r) shared[r * 32 + lane] = float(x[(group.x * ROWS + r) * args.stride + lane]);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < ROWS && r < args.rows; ++r) {
        if (ADD) y[group.x * ROWS + r] += simd_sum(shared[r * 32 + lane]);
        else y[group.x * ROWS + r] = simd_max(shared[r * 32 + lane]);
    }
}
INSTANCE(scale_1, scale<1, false>)
INSTANCE(scale_add_4, scale<4, true>)
