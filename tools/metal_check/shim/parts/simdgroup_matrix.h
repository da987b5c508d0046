// SIMD-group matrices: 8x8 of float, half or bfloat.
#pragma once

namespace metal {
template <class T, int C, int R = C>
struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "simdgroup_matrix is 8x8");
    static_assert(__is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat),
            "simdgroup_matrix holds float, half or bfloat");
    vec<T, 2> e_;
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T);
    THR_ vec<T, 2> &thread_elements() THR_;
    const THR_ vec<T, 2> &thread_elements() const THR_;
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
template <class T, int C, int R = C, class S>
simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(S);
template <class T, int C, int R = C, class S>
simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(S);
#define M_(A) \
    template <class T, int C, int R> \
    void simdgroup_load(THR_ simdgroup_matrix<T, C, R> &, const A T *, ulong = C, ulong2 = ulong2(0), bool = false); \
    template <class T, int C, int R> \
    void simdgroup_store(simdgroup_matrix<T, C, R>, A T *, ulong = C, ulong2 = ulong2(0), bool = false);
EACH_AS_RW_(M_)
#undef M_
template <class D, class A, class B>
void simdgroup_multiply(THR_ simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(THR_ simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>,
        simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <class A, class B>
simdgroup_matrix<A, 8, 8> operator*(simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);
} // namespace metal
