#include <metal_stdlib>
using namespace metal;

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
kernel void k(device float *y [[buffer(0)]]) {
    constexpr auto d = mpp::tensor_ops::matmul2d_descriptor(
            16, 32, 16, false, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<d, execution_simdgroup> op;
    auto a = op.get_left_input_cooperative_tensor<half, half, float>();
    auto b = op.get_right_input_cooperative_tensor<half, half, float>();
    auto c = op.get_destination_cooperative_tensor<metal::remove_addrspace_t<decltype(a)>,
            metal::remove_addrspace_t<decltype(b)>, float>();
    a[0] = 1.0h;
    b[0] = 2.0h;
    c[0] = 0;
    op.run(a, b, c);
    y[0] = c[0];
}
