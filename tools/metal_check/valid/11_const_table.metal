#include <metal_stdlib>
using namespace metal;

constant float table[4] = {0.0f, 1.0f, 2.0f, 3.0f};
constant constexpr int N = 4;
struct S {
    static constant constexpr int M = 2;
};
inline float look(constant const float *t, int i) {
    return t[i & (N - 1)];
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float a[N * S::M];
    a[0] = look(table, int(i));
    x[i] = a[0];
}
