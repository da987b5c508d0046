// expect: M and N multiples of 8, one of 16; K of 16
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

using Operand = tensor<device bfloat, dextents<int, 2>, tensor_inline>;

kernel void k(device bfloat *x [[buffer(0)]], device float *y [[buffer(1)]]) {
    constexpr auto d = mpp::tensor_ops::matmul2d_descriptor(16, 32, 24);
    mpp::tensor_ops::matmul2d<d, execution_simdgroup> op;
    Operand a(x, dextents<int, 2>(24, 16)), b(x, dextents<int, 2>(32, 24));
    auto c = op.get_destination_cooperative_tensor<Operand, Operand, float>();
    op.run(a, b, c);
    y[0] = c[0];
}
