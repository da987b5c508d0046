// What has no part of its own, and what rewrite.py makes of Metal's words.
#pragma once

namespace metal {
template <class T>
struct uniform_ {
    T v_;
    uniform_() = default;
    constexpr uniform_(T v) : v_(v) {}
    constexpr operator T() const { return v_; }
};
template <class T>
constexpr uniform_<T> make_uniform(T v) {
    return uniform_<T>(v);
}
template <class T>
constexpr bool is_function_constant_defined(T) {
    return true;
}
struct os_log {
    constexpr os_log(const __constant char *, const __constant char *) {}
    template <class... A>
    void log_debug(A...) const;
    template <class... A>
    void log(A...) const;
};

// rewrite.py puts `metal::branch ||` before both arms of every ?: so that an arm in device, threadgroup or constant memory
// is read to a value, as Apple's compiler does; clang rejects arms of a class type in different address spaces.
struct branch_ {};
constexpr CON_ branch_ branch = branch_();
template <class A, int n = vt_<A>::n>
struct value_ {
    using type = typename vt_<A>::V;
};
template <class A>
struct value_<A, 0> {
    using type = A;
};
template <class A>
constexpr typename value_<A>::type operator||(branch_, A a) {
    return a;
}

// rewrite.py binds each threadgroup variable to it.
struct tg_any_ {
    template <class U>
    operator TG_ U &() const;
};
extern CON_ tg_any_ tg_any;

// Result of __metal_* intrinsics, which are not checked.
struct intrinsic_any_ {
    template <class U>
    operator U() const;
};
template <class... A>
intrinsic_any_ intrinsic_(A...);
} // namespace metal
