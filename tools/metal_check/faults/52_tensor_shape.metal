// expect: M, N, K are 16 or 32, one of them 32
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

kernel void k(device float *y [[buffer(0)]]) {
    constexpr auto d = mpp::tensor_ops::matmul2d_descriptor(16, 16, 16);
    mpp::tensor_ops::matmul2d<d, execution_simdgroup> op;
    auto a = op.get_left_input_cooperative_tensor<half, half, float>();
    auto b = op.get_right_input_cooperative_tensor<half, half, float>();
    auto c = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
    op.run(a, b, c);
    y[0] = c[0];
}
