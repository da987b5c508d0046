#include <metal_stdlib>
using namespace metal;

constant uint N [[function_constant(0)]];
constant bool wide [[function_constant(1)]];
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (wide) x[i] *= float(N);
    if (is_function_constant_defined(N)) x[i] += 1;
}
