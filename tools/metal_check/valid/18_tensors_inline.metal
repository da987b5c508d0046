#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;

using Operand = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;

kernel void k(device const bfloat *x [[buffer(0)]], device float *y [[buffer(1)]],
        uint t [[thread_index_in_threadgroup]]) {
    threadgroup bfloat a[16 * 24], b[24 * 24];
    for (uint i = t; i < 16 * 24; i += 32) a[i] = x[i];
    for (uint i = t; i < 24 * 24; i += 32) b[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    constexpr auto d = mpp::tensor_ops::matmul2d_descriptor(
            16, 24, 16, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
    mpp::tensor_ops::matmul2d<d, execution_simdgroup> op;
    Operand left(a, dextents<int, 2>(16, 16), array<int, 2>{1, 24});
    Operand right(b, dextents<int, 2>(16, 24), array<int, 2>{1, 24});
    auto c = op.get_destination_cooperative_tensor<Operand, Operand, float>();
    op.run(left, right, c);
    for (int i = 0; i < c.get_capacity(); ++i) {
        auto place = c.get_multidimensional_index(i);
        if (c.is_valid_element(i)) y[place[1] * 24 + place[0]] = c[i];
    }
}
