#include <metal_stdlib>
using namespace metal;

struct Acc {
    float s;
    void add(float v) {
        s += v;
    }
    float get() const {
        return s;
    }
};
template <typename F>
inline void each(int n, F f) {
    for (int i = 0; i < n; ++i) f(i);
}
kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    Acc a;
    a.s = 0;
    each(4, [&](int j) { a.add(float(j)); });
    x[i] = a.get();
}
