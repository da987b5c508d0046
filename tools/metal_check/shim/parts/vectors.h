// Vectors, swizzles, matrices of vectors, operators, `as_type`.
#pragma once

namespace metal {
// A vec is a class and no ext_vector: that gives Metal's constructors, bool vectors from comparisons, and no implicit
// conversion. Every legal swizzle is a member of type swz, which converts to a vec and is assigned from one.
template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;
template <class V, class T, int N, int... I>
class swz;

// Traits of vectors: elements n, 0 for what is none; vector type V; element type E.
template <class A>
struct vt_ {
    static constexpr CON_ int n = 0;
};
template <class T, int N>
struct vt_<vec<T, N>> {
    static constexpr CON_ int n = N;
    using V = vec<T, N>;
    using E = T;
};
template <class T, int N>
struct vt_<packed_vec<T, N>> : vt_<vec<T, N>> {};
template <class V, class T, int N, int... I>
struct vt_<swz<V, T, N, I...>> : vt_<V> {};

// Elements that a constructor's arguments have together; beyond any width if one does not convert.
template <class T, class... A>
constexpr int lanes_() {
    return ((vt_<A>::n ? vt_<A>::n : __is_convertible_to(A, T) ? 1 : 99) + ... + 0);
}
template <class T, class A>
constexpr bool lane_ok_() {
    if constexpr (vt_<A>::n != 0)
        return __is_same(typename vt_<A>::E, T);
    else
        return true;
}
template <class T, class... A>
constexpr bool lanes_ok_() {
    return (lane_ok_<T, A>() && ...);
}
constexpr bool distinct_(int a = -1, int b = -2, int c = -3, int d = -4) {
    return a != b && a != c && a != d && b != c && b != d && c != d;
}
class no_such_swizzle {
    no_such_swizzle();
};

#define COMPOUND_(Self, ...) \
    Self &operator+=(__VA_ARGS__); \
    Self &operator-=(__VA_ARGS__); \
    Self &operator*=(__VA_ARGS__); \
    Self &operator/=(__VA_ARGS__); \
    Self &operator%=(__VA_ARGS__); \
    Self &operator&=(__VA_ARGS__); \
    Self &operator|=(__VA_ARGS__); \
    Self &operator^=(__VA_ARGS__); \
    Self &operator<<=(__VA_ARGS__); \
    Self &operator>>=(__VA_ARGS__);

template <class V, class T, int N, int... I>
class swz {
    T d_[N == 3 ? 4 : N];
    // Nothing can be assigned to v.xx.
    using W = conditional_t<distinct_(I...), V, no_such_swizzle>;

  public:
    swz() = default;
    operator V() const;
    swz &operator=(W);
    COMPOUND_(swz, W)
};

// Loops over the components p q r s with their numbers; a macro for each depth, as the preprocessor cannot recurse.
#define LOOP2_(F, p, q, r, s, ...) F(p, 0, __VA_ARGS__) F(q, 1, __VA_ARGS__)
#define LOOP3_(F, p, q, r, s, ...) LOOP2_(F, p, q, r, s, __VA_ARGS__) F(r, 2, __VA_ARGS__)
#define LOOP4_(F, p, q, r, s, ...) LOOP3_(F, p, q, r, s, __VA_ARGS__) F(s, 3, __VA_ARGS__)
#define A2_(F, p, q, r, s, ...) F(p, 0, p, q, r, s, __VA_ARGS__) F(q, 1, p, q, r, s, __VA_ARGS__)
#define A3_(F, p, q, r, s, ...) A2_(F, p, q, r, s, __VA_ARGS__) F(r, 2, p, q, r, s, __VA_ARGS__)
#define A4_(F, p, q, r, s, ...) A3_(F, p, q, r, s, __VA_ARGS__) F(s, 3, p, q, r, s, __VA_ARGS__)
#define B2_(F, p, q, r, s, ...) F(p, 0, p, q, r, s, __VA_ARGS__) F(q, 1, p, q, r, s, __VA_ARGS__)
#define B3_(F, p, q, r, s, ...) B2_(F, p, q, r, s, __VA_ARGS__) F(r, 2, p, q, r, s, __VA_ARGS__)
#define B4_(F, p, q, r, s, ...) B3_(F, p, q, r, s, __VA_ARGS__) F(s, 3, p, q, r, s, __VA_ARGS__)
#define C2_(F, p, q, r, s, ...) F(p, 0, p, q, r, s, __VA_ARGS__) F(q, 1, p, q, r, s, __VA_ARGS__)
#define C3_(F, p, q, r, s, ...) C2_(F, p, q, r, s, __VA_ARGS__) F(r, 2, p, q, r, s, __VA_ARGS__)
#define C4_(F, p, q, r, s, ...) C3_(F, p, q, r, s, __VA_ARGS__) F(s, 3, p, q, r, s, __VA_ARGS__)
#define S2_(b, j, a, i, N) swz<vec<T, 2>, T, N, i, j> a##b;
#define S3_(c, k, b, j, a, i, N) swz<vec<T, 3>, T, N, i, j, k> a##b##c;
#define S4_(d, l, c, k, b, j, a, i, N) swz<vec<T, 4>, T, N, i, j, k, l> a##b##c##d;
// A swizzle of n letters over a vec of N: In(letter, number, letters..., outer letters..., N).
#define I22_(a, i, p, q, r, s, N) LOOP##N##_(S2_, p, q, r, s, a, i, N)
#define I33_(b, j, p, q, r, s, a, i, N) LOOP##N##_(S3_, p, q, r, s, b, j, a, i, N)
#define I32_(a, i, p, q, r, s, N) B##N##_(I33_, p, q, r, s, a, i, N)
#define I44_(c, k, p, q, r, s, b, j, a, i, N) LOOP##N##_(S4_, p, q, r, s, c, k, b, j, a, i, N)
#define I43_(b, j, p, q, r, s, a, i, N) C##N##_(I44_, p, q, r, s, b, j, a, i, N)
#define I42_(a, i, p, q, r, s, N) B##N##_(I43_, p, q, r, s, a, i, N)
#define SWIZZLES_(N, p, q, r, s) A##N##_(I22_, p, q, r, s, N) A##N##_(I32_, p, q, r, s, N) A##N##_(I42_, p, q, r, s, N)
#define VEC_BODY_(N, ...) \
    using E_ = T; \
    vec() = default; \
    template <class A, enable_if_t<!vt_<A>::n && (__is_arithmetic(A) || __is_enum(A)), int> = 0> \
    constexpr vec(A) : d_{} {} \
    template <class A, \
            enable_if_t<!vt_<A>::n && !__is_arithmetic(A) && !__is_enum(A) && __is_convertible_to(A, T), int> = 0> \
    constexpr explicit vec(A) : d_{} {} \
    template <class A, enable_if_t<vt_<A>::n == N && !lane_ok_<T, A>(), int> = 0> \
    constexpr explicit vec(A) : d_{} {} \
    template <class A, class B, class... R, \
            enable_if_t<lanes_<T, A, B, R...>() == N && lanes_ok_<T, A, B, R...>(), int> = 0> \
    constexpr vec(A, B, R...) : d_{} {} \
    T &operator[](size_t); \
    constexpr T operator[](size_t) const { return T(); } \
    vec &operator++(); \
    vec &operator--(); \
    vec operator++(int); \
    vec operator--(int); \
    COMPOUND_(vec, vec) \
    union { \
        T d_[N == 3 ? 4 : N]; \
        __VA_ARGS__ \
    };

// Wider than 4: no swizzles.
template <class T, int N>
struct vec {
    VEC_BODY_(N, )
};
template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
    VEC_BODY_(2, struct { T x, y; }; struct { T r, g; }; SWIZZLES_(2, x, y, z, w) SWIZZLES_(2, r, g, b, a))
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
    VEC_BODY_(3, struct { T x, y, z; }; struct { T r, g, b; }; SWIZZLES_(3, x, y, z, w) SWIZZLES_(3, r, g, b, a))
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
    VEC_BODY_(4, struct { T x, y, z, w; }; struct { T r, g, b, a; }; SWIZZLES_(4, x, y, z, w) SWIZZLES_(4, r, g, b, a))
};
template <class T, int N>
struct packed_vec {
    T d_[N];
    packed_vec() = default;
    constexpr packed_vec(vec<T, N>) : d_{} {}
    template <class... A, enable_if_t<sizeof...(A) && lanes_<T, A...>() == N, int> = 0>
    constexpr packed_vec(A...) : d_{} {}
    T &operator[](size_t);
    T operator[](size_t) const;
    operator vec<T, N>() const;
    COMPOUND_(packed_vec, vec<T, N>)
};
#define PK_(N, ...) \
    template <class T> \
    struct packed_vec<T, N> { \
        union { \
            T d_[N]; \
            struct { \
                T __VA_ARGS__; \
            }; \
        }; \
        packed_vec() = default; \
        constexpr packed_vec(vec<T, N>) : d_{} {} \
        T &operator[](size_t); \
        T operator[](size_t) const; \
        operator vec<T, N>() const; \
        COMPOUND_(packed_vec, vec<T, N>) \
        template <class A, class... B, \
                enable_if_t<lanes_<T, A, B...>() == N || (sizeof...(B) == 0 && __is_arithmetic(A)), int> = 0> \
        constexpr packed_vec(A, B...) : d_{} {} \
    };
PK_(2, x, y)
PK_(3, x, y, z)
PK_(4, x, y, z, w)
#define M_(T) \
    using T##2 = vec<T, 2>; \
    using T##3 = vec<T, 3>; \
    using T##4 = vec<T, 4>; \
    using packed_##T##2 = packed_vec<T, 2>; \
    using packed_##T##3 = packed_vec<T, 3>; \
    using packed_##T##4 = packed_vec<T, 4>;
EACH_SCALAR_(M_)
M_(bfloat)
#undef M_
template <class T, int C, int R>
struct matrix {
    vec<T, R> c_[C];
    matrix() = default;
    explicit matrix(T);
    template <class... V>
    matrix(V...);
    vec<T, R> &operator[](int);
    vec<T, R> operator[](int) const;
};
template <class T, int C, int R>
vec<T, R> operator*(matrix<T, C, R>, vec<T, C>);
template <class T, int C, int R>
vec<T, C> operator*(vec<T, R>, matrix<T, C, R>);
#define M_(T) \
    using T##2x2 = matrix<T, 2, 2>; \
    using T##3x3 = matrix<T, 3, 3>; \
    using T##4x4 = matrix<T, 4, 4>; \
    using T##2x4 = matrix<T, 2, 4>; \
    using T##4x2 = matrix<T, 4, 2>; \
    using T##3x4 = matrix<T, 3, 4>; \
    using T##4x3 = matrix<T, 4, 3>;
M_(float)
M_(half)
#undef M_

// Operators take two vectors of one type, or a vector and an arithmetic scalar.
template <class A, class B, bool a = vt_<A>::n != 0, bool b = vt_<B>::n != 0>
struct both_ {};
template <class V>
struct one_ {
    using type = V;
};
template <class A, class B>
struct both_<A, B, true, true>
    : conditional_t<__is_same(typename vt_<A>::V, typename vt_<B>::V), one_<typename vt_<A>::V>, both_<int, int>> {};
template <class A, class B>
struct both_<A, B, true, false> : conditional_t<__is_arithmetic(B), one_<typename vt_<A>::V>, both_<int, int>> {};
template <class A, class B>
struct both_<A, B, false, true> : conditional_t<__is_arithmetic(A), one_<typename vt_<B>::V>, both_<int, int>> {};
template <class A, class B>
using both_t = typename both_<A, B>::type;
template <class V>
using mask_ = vec<bool, vt_<V>::n>;
#define M_(op) \
    template <class A, class B, class V = both_t<A, B>> \
    constexpr V operator op(A, B) { \
        return V(); \
    }
M_(+)
M_(-)
M_(*)
M_(/)
#undef M_
#define M_(op) \
    template <class A, class B, class V = both_t<A, B>> \
    constexpr enable_if_t<__is_integral(typename vt_<V>::E), V> operator op(A, B) { \
        return V(); \
    }
M_(%)
M_(&)
M_(|)
M_(^)
M_(<<)
M_(>>)
#undef M_
#define M_(op) \
    template <class A, class B, class V = both_t<A, B>> \
    constexpr mask_<V> operator op(A, B) { \
        return mask_<V>(); \
    }
M_(==)
M_(!=)
M_(<)
M_(>)
M_(<=)
M_(>=)
M_(&&)
M_(||)
#undef M_
template <class A, class V = typename vt_<A>::V>
V operator-(A);
template <class A, class V = typename vt_<A>::V>
V operator+(A);
template <class A, class V = typename vt_<A>::V>
enable_if_t<__is_integral(typename vt_<V>::E), V> operator~(A);
template <class A, class V = typename vt_<A>::V>
mask_<V> operator!(A);
template <class T, size_t N>
struct array {
    T elems_[N];
    constexpr size_t size() const { return N; }
    constexpr const THR_ T &operator[](size_t i) const THR_ { return elems_[i]; }
    constexpr THR_ T &operator[](size_t i) THR_ { return elems_[i]; }
    CON_ T &operator[](size_t i) CON_ { return elems_[i]; }
    TG_ T &operator[](size_t i) TG_;
};
template <class T, class U>
struct pair {
    T first;
    U second;
};

template <class D, class S>
constexpr D as_type(S) {
    static_assert(sizeof(D) == sizeof(S), "as_type: sizes differ");
    static_assert((vt_<D>::n || __is_arithmetic(D)) && (vt_<S>::n || __is_arithmetic(S)),
            "as_type: scalar or vector types only");
    return D();
}
} // namespace metal
