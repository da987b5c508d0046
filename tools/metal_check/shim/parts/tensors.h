// Metal 4 tensors and MetalPerformancePrimitives: the shape of the interface only.
#pragma once

namespace metal {
template <class I, size_t... E>
struct extents {
    using index_type = I;
    static constexpr CON_ size_t rank_ = sizeof...(E);
    I e_[sizeof...(E) + 1];
    constexpr extents() = default;
    template <class... A>
    constexpr extents(A...) : e_{} {}
    I extent(int) const;
};
constexpr CON_ size_t dynamic_extent = ~0ul;
template <class I, size_t R>
struct dextents : extents<I> {
    using index_type = I;
    static constexpr CON_ size_t rank_ = R;
    template <class... A>
    constexpr dextents(A...) {
        static_assert(sizeof...(A) == R, "dextents: an extent for each dimension");
    }
};
struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};
struct int4b_format {};
struct uint4b_format {};
template <class T, class X, class D = tensor_handle, class... Tags>
struct tensor {
    using element_type = T;
    using extents_type = X;
    tensor() = default;
    tensor(T *, X);
    tensor(T *, X, array<typename X::index_type, X::rank_>);
    template <class... I>
    tensor slice(I...) const;
    template <auto... E, class... I>
    tensor slice(I...) const;
    template <auto... E, class... I>
    tensor static_slice(I...) const;
    template <class... I>
    T &operator[](I...) const;
    int get_extent(int) const;
};
struct execution_simdgroup {};
struct execution_thread {};
template <int N>
struct execution_simdgroups {};
template <class T>
struct cooperative_tensor {
    using element_type = T;
    THR_ T &operator[](int) THR_;
    const THR_ T &operator[](int) const THR_;
    int get_capacity() const;
    bool is_valid_element(int) const;
    array<int, 2> get_multidimensional_index(int) const;
    template <class X>
    void load(X);
    template <class X>
    void store(X) const;
};
} // namespace metal

namespace mpp {
namespace tensor_ops {
// A structure with what the product is made of; as C++17 takes no class as a template argument, packed into one number.
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool ta, tb, relaxed;
    mode md;
    constexpr matmul2d_descriptor(
            int m, int n, int k = -1, bool ta = false, bool tb = false, bool relaxed = false, mode md = mode::multiply)
        : m(m), n(n), k(k), ta(ta), tb(tb), relaxed(relaxed), md(md) {}
    constexpr operator long() const { return m + 4096l * n + 16777216l * k; }
};
constexpr int rows_(long desc) { return int(desc & 4095); }
constexpr int columns_(long desc) { return int(desc >> 12 & 4095); }
constexpr int inner_(long desc) { return int(desc >> 24); }
constexpr CON_ int dynamic_length_v = -1;

// What an operand is: its element type, and whether it is a cooperative tensor.
template <class A>
struct operand_ {
    static constexpr CON_ bool is = false;
};
template <class T, class X, class D, class... Tags>
struct operand_<metal::tensor<T, X, D, Tags...>> {
    static constexpr CON_ bool is = true, cooperative = false;
    using type = metal::remove_cv_t<metal::remove_addrspace_t<T>>;
};
template <class T>
struct operand_<metal::cooperative_tensor<T>> {
    static constexpr CON_ bool is = true, cooperative = true;
    using type = T;
};
template <class T>
constexpr bool is_float_() {
    return __is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat);
}
template <class T>
constexpr bool is_byte_() {
    return __is_same(T, metal::int8_t) || __is_same(T, metal::uint8_t);
}
// Element types of left, right and result that the operation takes; the formats of less than a byte are not listed.
template <class A, class B, class C>
constexpr bool is_product_() {
    if constexpr (is_byte_<A>() && is_byte_<B>())
        return __is_same(A, B) && __is_same(C, int);
    else if constexpr (is_float_<A>() && is_float_<B>() && !__is_same(A, B) && !__is_same(A, float) && !__is_same(B, float))
        return is_float_<C>();
    else if constexpr (is_byte_<A>())
        return is_float_<B>() && (__is_same(C, B) || __is_same(C, float));
    else
        return is_float_<A>() && (is_float_<B>() || is_byte_<B>()) &&
                (__is_same(C, float) || (__is_same(C, A) && (is_byte_<B>() || __is_same(A, B))));
}

template <long Desc, class Scope>
struct matmul2d {
    template <class A, class B, class C>
    metal::cooperative_tensor<A> get_left_input_cooperative_tensor() const {
        static_assert(is_product_<A, B, C>(), "matmul2d does not take these element types");
        return {};
    }
    template <class A, class B, class C>
    metal::cooperative_tensor<B> get_right_input_cooperative_tensor() const {
        static_assert(is_product_<A, B, C>(), "matmul2d does not take these element types");
        return {};
    }
    template <class A, class B, class C>
    metal::cooperative_tensor<C> get_destination_cooperative_tensor() const {
        static_assert(operand_<metal::remove_addrspace_t<A>>::is && operand_<metal::remove_addrspace_t<B>>::is,
                "matmul2d: the operands' types are tensors");
        return {};
    }
    template <class A, class B, class C>
    void run(THR_ A &, THR_ B &, THR_ C &) const {
        static_assert(operand_<A>::is && operand_<B>::is && operand_<C>::is, "matmul2d::run takes tensors");
        static_assert(is_product_<typename operand_<A>::type, typename operand_<B>::type, typename operand_<C>::type>(),
                "matmul2d does not take these element types");
        constexpr int m = rows_(Desc), n = columns_(Desc), k = inner_(Desc);
        if constexpr (operand_<A>::cooperative && operand_<B>::cooperative)
            static_assert((m == 16 || m == 32) && (n == 16 || n == 32) && (k == 16 || k == 32) && (m == 32 || n == 32 || k == 32),
                    "matmul2d: M, N, K are 16 or 32, one of them 32, if both inputs are cooperative tensors");
        else if constexpr (__is_same(Scope, metal::execution_simdgroup))
            static_assert(m % 8 == 0 && n % 8 == 0 && (m % 16 == 0 || n % 16 == 0) && (k % 16 == 0 || k <= 0),
                    "matmul2d of one simdgroup: M and N multiples of 8, one of 16; K of 16");
    }
};
} // namespace tensor_ops
} // namespace mpp
