// expect: no matching constructor for initialization of
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

kernel void k(device bfloat *x [[buffer(0)]], device float *y [[buffer(1)]]) {
    tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline> a(x, dextents<int, 2>(16, 16));
    y[0] = float(a[0, 0]);
}
