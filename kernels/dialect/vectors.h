// Number types of the kernel language outside of Metal: 16-bit floats and short vectors, for the simulator and CUDA.
//
// The reader that includes this defines LY_FN, how a function is marked: inline, or __device__ __forceinline__.
// Vectors are named by macros at the end, since CUDA has types of these names already.
#pragma once
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace ly {
template <class To, class From> LY_FN To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
  To to;
  memcpy(static_cast<void *>(&to), &from, sizeof to);
  return to;
}
}  // namespace ly

// 16-bit floats are stored, never calculated with: widen by float(x), narrow by bfloat(x). bfloat rounds to nearest,
// ties to even; a NaN stays a NaN.
struct bfloat {
  ushort bits;
  bfloat() = default;
  LY_FN explicit bfloat(float value) {
#ifdef __CUDACC__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    uint wide = ly::bits<uint>(value);
    bits = value == value ? ushort((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16) : ushort(0x7fc0);
#endif
  }
  LY_FN operator float() const { return ly::bits<float>(uint(bits) << 16); }
};

#ifdef __CUDACC__
struct half {
  ushort bits;
  half() = default;
  LY_FN explicit half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  LY_FN operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};
#else
struct half {
#ifdef __aarch64__
  __fp16 value;
#else
  _Float16 value;
#endif
  half() = default;
  LY_FN explicit half(float wide) : value(static_cast<decltype(value)>(wide)) {}
  LY_FN operator float() const { return float(value); }
};
#endif

namespace ly {
#ifdef LY_CHECKED
// Copies by hand: the compiler then checks the alignment of what it copies.
#define LY_COPY(N)                                  \
  LY_FN vec(const vec &other) {                     \
    for (int i = 0; i < N; ++i) e[i] = other.e[i];  \
  }                                                 \
  LY_FN vec &operator=(const vec &other) {          \
    for (int i = 0; i < N; ++i) e[i] = other.e[i];  \
    return *this;                                   \
  }
#else
#define LY_COPY(N)
#endif

template <class T, int N> struct vec;

// `v.xy` and its like: a view of some components, read only.
template <class T, int N, int... I> struct swizzle {
  T e[N];
  LY_FN operator vec<T, sizeof...(I)>() const { return vec<T, sizeof...(I)>(e[I]...); }
};

// Vectors convert by value: taken by reference, NVRTC splits one load of a bfloat4 into four.
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T e[2];
    struct { T x, y; };
  };
  vec() = default;
  LY_COPY(2)
  LY_FN explicit vec(T all) { x = all; y = all; }
  LY_FN vec(T a, T b) { x = a; y = b; }
  template <class U> LY_FN explicit vec(vec<U, 2> other) { x = T(other.x); y = T(other.y); }
  LY_FN T &operator[](uint i) { return e[i]; }
  LY_FN const T &operator[](uint i) const { return e[i]; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T e[3];
    struct { T x, y, z; };
    swizzle<T, 3, 0, 1> xy;
    swizzle<T, 3, 1, 2> yz;
  };
  vec() = default;
  LY_COPY(3)
  LY_FN explicit vec(T all) { x = all; y = all; z = all; }
  LY_FN vec(T a, T b, T c) { x = a; y = b; z = c; }
  template <class U> LY_FN explicit vec(vec<U, 3> other) { x = T(other.x); y = T(other.y); z = T(other.z); }
  LY_FN T &operator[](uint i) { return e[i]; }
  LY_FN const T &operator[](uint i) const { return e[i]; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T e[4];
    struct { T x, y, z, w; };
    swizzle<T, 4, 0, 1> xy;
    swizzle<T, 4, 2, 3> zw;
    swizzle<T, 4, 0, 1, 2> xyz;
  };
  vec() = default;
  LY_COPY(4)
  LY_FN explicit vec(T all) { x = all; y = all; z = all; w = all; }
  LY_FN vec(T a, T b, T c, T d) { x = a; y = b; z = c; w = d; }
  LY_FN vec(vec<T, 2> a, vec<T, 2> b) { x = a.x; y = a.y; z = b.x; w = b.y; }
  template <class U> LY_FN explicit vec(vec<U, 4> other) {
    x = T(other.x);
    y = T(other.y);
    z = T(other.z);
    w = T(other.w);
  }
  LY_FN T &operator[](uint i) { return e[i]; }
  LY_FN const T &operator[](uint i) const { return e[i]; }
};
#undef LY_COPY

// The type itself, where a template must not deduce it: `v * 2.0f`, `v / n` work as in Metal.
template <class T> struct same { typedef T type; };

#define LY_OPERATOR(op)                                                                            \
  template <class T, int N> LY_FN vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {                \
    for (int i = 0; i < N; ++i) a.e[i] = T(a.e[i] op b.e[i]);                                      \
    return a;                                                                                      \
  }                                                                                                \
  template <class T, int N> LY_FN vec<T, N> operator op(vec<T, N> a, typename same<T>::type b) {   \
    for (int i = 0; i < N; ++i) a.e[i] = T(a.e[i] op b);                                           \
    return a;                                                                                      \
  }                                                                                                \
  template <class T, int N> LY_FN vec<T, N> operator op(typename same<T>::type a, vec<T, N> b) {   \
    for (int i = 0; i < N; ++i) b.e[i] = T(a op b.e[i]);                                           \
    return b;                                                                                      \
  }                                                                                                \
  template <class T, int N> LY_FN vec<T, N> &operator op##=(vec<T, N> &a, vec<T, N> b) {           \
    a = a op b;                                                                                    \
    return a;                                                                                      \
  }                                                                                                \
  template <class T, int N> LY_FN vec<T, N> &operator op##=(vec<T, N> &a, typename same<T>::type b) { \
    a = a op b;                                                                                    \
    return a;                                                                                      \
  }
LY_OPERATOR(+)
LY_OPERATOR(-)
LY_OPERATOR(*)
LY_OPERATOR(/)
LY_OPERATOR(&)
LY_OPERATOR(|)
LY_OPERATOR(^)
LY_OPERATOR(>>)
LY_OPERATOR(<<)
#undef LY_OPERATOR
template <class T, int N> LY_FN vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; ++i) a.e[i] = -a.e[i];
  return a;
}

#define LY_TYPES(T)         \
  typedef vec<T, 2> T##2_;  \
  typedef vec<T, 3> T##3_;  \
  typedef vec<T, 4> T##4_;
LY_TYPES(float)
LY_TYPES(half)
LY_TYPES(bfloat)
LY_TYPES(int)
LY_TYPES(uint)
LY_TYPES(uchar)
LY_TYPES(ushort)
LY_TYPES(ulong)
#undef LY_TYPES
}  // namespace ly

#define float2 ly::float2_
#define float3 ly::float3_
#define float4 ly::float4_
#define half2 ly::half2_
#define half3 ly::half3_
#define half4 ly::half4_
#define bfloat2 ly::bfloat2_
#define bfloat3 ly::bfloat3_
#define bfloat4 ly::bfloat4_
#define int2 ly::int2_
#define int3 ly::int3_
#define int4 ly::int4_
#define uint2 ly::uint2_
#define uint3 ly::uint3_
#define uint4 ly::uint4_
#define uchar2 ly::uchar2_
#define uchar3 ly::uchar3_
#define uchar4 ly::uchar4_
#define ushort2 ly::ushort2_
#define ushort3 ly::ushort3_
#define ushort4 ly::ushort4_
#define ulong2 ly::ulong2_
#define ulong3 ly::ulong3_
#define ulong4 ly::ulong4_

template <class To, class From> LY_FN To as_type(From from) { return ly::bits<To>(from); }
template <int N> LY_FN float dot(ly::vec<float, N> a, ly::vec<float, N> b) {
  float sum = 0.0f;
  for (int i = 0; i < N; ++i) sum += a.e[i] * b.e[i];
  return sum;
}
