// expect: matmul2d does not take these element types
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

kernel void k(device float *y [[buffer(0)]]) {
    constexpr auto d = mpp::tensor_ops::matmul2d_descriptor(16, 32, 16);
    mpp::tensor_ops::matmul2d<d, execution_simdgroup> op;
    auto a = op.get_left_input_cooperative_tensor<bfloat, bfloat, half>();
    y[0] = float(a[0]);
}
