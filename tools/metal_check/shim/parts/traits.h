// Type traits, numeric limits, integer sequences.
#pragma once

namespace metal {
template <class T, T V>
struct integral_constant {
    static constexpr CON_ T value = V;
    using value_type = T;
    using type = integral_constant;
    constexpr operator T() const { return V; }
    constexpr T operator()() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
    using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F>
struct conditional {
    using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
    using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;
#define TRAIT_(name) \
    template <class T> \
    constexpr CON_ bool name##_v = name<T>::value;
template <class T, class U>
struct is_same : false_type {};
template <class T>
struct is_same<T, T> : true_type {};
template <class T, class U>
constexpr CON_ bool is_same_v = is_same<T, U>::value;
template <class T>
struct remove_addrspace {
    using type = T;
};
#define M_(A) \
    template <class T> \
    struct remove_addrspace<A T> { \
        using type = T; \
    }; \
    template <class T> \
    struct remove_addrspace<const A T> { \
        using type = T; \
    };
M_(DEV_)
M_(TG_)
M_(THR_)
M_(__global)
#undef M_
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T>
struct remove_const {
    using type = T;
};
template <class T>
struct remove_const<const T> {
    using type = T;
};
template <class T>
struct remove_volatile {
    using type = T;
};
template <class T>
struct remove_volatile<volatile T> {
    using type = T;
};
template <class T>
struct remove_cv {
    using type = typename remove_volatile<typename remove_const<T>::type>::type;
};
template <class T>
struct remove_reference {
    using type = __remove_reference_t(T);
};
template <class T>
struct remove_pointer {
    using type = __remove_pointer(T);
};
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
using remove_reference_t = __remove_reference_t(T);
template <class T>
using remove_pointer_t = __remove_pointer(T);
template <class T>
using decay_t = remove_cv_t<remove_addrspace_t<remove_reference_t<T>>>;
template <class T>
struct is_floating_point : bool_constant<__is_floating_point(T)> {};
TRAIT_(is_floating_point)
template <class T>
struct is_integral : bool_constant<__is_integral(T)> {};
TRAIT_(is_integral)
template <class T>
struct is_arithmetic : bool_constant<__is_arithmetic(T)> {};
TRAIT_(is_arithmetic)
template <class T>
struct is_scalar : bool_constant<__is_scalar(T)> {};
TRAIT_(is_scalar)
template <class T>
struct is_signed : bool_constant<__is_signed(T)> {};
TRAIT_(is_signed)
template <class T>
struct is_unsigned : bool_constant<__is_unsigned(T)> {};
TRAIT_(is_unsigned)
template <class T>
struct is_enum : bool_constant<__is_enum(T)> {};
TRAIT_(is_enum)
template <class T>
struct is_void : bool_constant<__is_void(T)> {};
TRAIT_(is_void)
template <class T>
struct is_const : bool_constant<__is_const(T)> {};
TRAIT_(is_const)
template <class T>
struct is_pointer : bool_constant<__is_pointer(T)> {};
TRAIT_(is_pointer)
template <class T>
struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
TRAIT_(is_trivially_copyable)
template <class T, class U>
struct is_convertible : bool_constant<__is_convertible_to(T, U)> {};
template <class T, class U>
constexpr CON_ bool is_convertible_v = is_convertible<T, U>::value;
template <class B, class D>
struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <class T>
struct make_unsigned {
    using type = __make_unsigned(T);
};
template <class T>
using make_unsigned_t = __make_unsigned(T);
template <class T>
struct make_signed {
    using type = __make_signed(T);
};
template <class T>
using make_signed_t = __make_signed(T);
template <class... B>
struct _disjunction : bool_constant<(B::value || ...)> {};
template <class... B>
struct _conjunction : bool_constant<(B::value && ...)> {};
template <class T>
T declval();
template <class T, T... I>
struct integer_sequence {
    static constexpr size_t size() { return sizeof...(I); }
};
template <class T, T N>
using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;
template <size_t... I>
using index_sequence = integer_sequence<size_t, I...>;
template <size_t N>
using make_index_sequence = make_integer_sequence<size_t, N>;
template <class T>
struct numeric_limits {
    static constexpr CON_ bool is_specialized = true, is_signed = __is_signed(T), is_integer = __is_integral(T),
                               has_infinity = !is_integer;
    static constexpr CON_ int digits = 8 * sizeof(T) - is_signed;
    static constexpr T min() { return T(); }
    static constexpr T max() { return T(); }
    static constexpr T lowest() { return T(); }
    static constexpr T infinity() { return T(); }
    static constexpr T quiet_NaN() { return T(); }
    static constexpr T epsilon() { return T(); }
    static constexpr T denorm_min() { return T(); }
    static constexpr T signaling_NaN() { return T(); }
};
} // namespace metal
