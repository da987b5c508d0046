// Math, integer, relational and geometric functions.
#pragma once

namespace metal {
// Plain overloads per type, as Apple declares them, so that mixed arguments are ambiguous here as there.
// There is none for bfloat: a bfloat argument converts to float.
#define WIDTHS_(M, T) M(T) M(T##2) M(T##3) M(T##4)
#define MATH_(V) \
    V acos(V); \
    V acosh(V); \
    V asin(V); \
    V asinh(V); \
    V atan(V); \
    V atanh(V); \
    V atan2(V, V); \
    V ceil(V); \
    V cos(V); \
    V cosh(V); \
    V cospi(V); \
    V divide(V, V); \
    V exp(V); \
    V exp2(V); \
    V exp10(V); \
    V fabs(V); \
    V abs(V); \
    V fdim(V, V); \
    V floor(V); \
    V fma(V, V, V); \
    V fmax(V, V); \
    V fmax3(V, V, V); \
    V fmin(V, V); \
    V fmin3(V, V, V); \
    V fmod(V, V); \
    V fract(V); \
    V log(V); \
    V log2(V); \
    V log10(V); \
    V nextafter(V, V); \
    V pow(V, V); \
    V powr(V, V); \
    V rint(V); \
    V round(V); \
    V rsqrt(V); \
    V sin(V); \
    V sinh(V); \
    V sinpi(V); \
    V sqrt(V); \
    V tan(V); \
    V tanh(V); \
    V tanpi(V); \
    V trunc(V); \
    V copysign(V, V); \
    V max(V, V); \
    V min(V, V); \
    V max3(V, V, V); \
    V min3(V, V, V); \
    V median3(V, V, V); \
    V clamp(V, V, V); \
    V mix(V, V, V); \
    V saturate(V); \
    V sign(V); \
    V step(V, V); \
    V smoothstep(V, V, V); \
    V modf(V, THR_ V &); \
    V sincos(V, THR_ V &);
WIDTHS_(MATH_, float)
WIDTHS_(MATH_, half)
namespace fast {
WIDTHS_(MATH_, float)
WIDTHS_(MATH_, half)
} // namespace fast
namespace precise {
WIDTHS_(MATH_, float)
WIDTHS_(MATH_, half)
} // namespace precise
#define M_(V, I, B) \
    B isnan(V); \
    B isinf(V); \
    B isfinite(V); \
    B isnormal(V); \
    B signbit(V); \
    B isunordered(V, V); \
    V ldexp(V, I); \
    V frexp(V, THR_ I &); \
    I ilogb(V);
#define N_(T) \
    M_(T, int, bool) \
    M_(T##2, int2, bool2) \
    M_(T##3, int3, bool3) \
    M_(T##4, int4, bool4)
N_(float)
N_(half)
#undef M_
#undef N_
#define M_(T) WIDTHS_(INTFN_, T)
#define INTFN_(V) \
    V abs(V); \
    V absdiff(V, V); \
    V addsat(V, V); \
    V subsat(V, V); \
    V clamp(V, V, V); \
    V clz(V); \
    V ctz(V); \
    V hadd(V, V); \
    V rhadd(V, V); \
    V mad24(V, V, V); \
    V mul24(V, V); \
    V madhi(V, V, V); \
    V madsat(V, V, V); \
    V mulhi(V, V); \
    V popcount(V); \
    V reverse_bits(V); \
    V rotate(V, V); \
    V max(V, V); \
    V min(V, V); \
    V max3(V, V, V); \
    V min3(V, V, V); \
    V median3(V, V, V); \
    V extract_bits(V, uint, uint); \
    V insert_bits(V, V, uint, uint);
EACH_INT_(M_)
#undef M_
#define M_(T) \
    T select(T, T, bool); \
    T##2 select(T##2, T##2, bool2); \
    T##3 select(T##3, T##3, bool3); \
    T##4 select(T##4, T##4, bool4);
EACH_SCALAR_(M_)
M_(bfloat)
#undef M_
bool any(bool2);
bool any(bool3);
bool any(bool4);
bool all(bool2);
bool all(bool3);
bool all(bool4);
#define M_(T, V) \
    T dot(V, V); \
    T length(V); \
    T length_squared(V); \
    T distance(V, V); \
    T distance_squared(V, V); \
    V normalize(V); \
    V reflect(V, V);
M_(float, float2)
M_(float, float3)
M_(float, float4)
M_(half, half2)
M_(half, half3)
M_(half, half4)
#undef M_
float3 cross(float3, float3);
half3 cross(half3, half3);
uint pack_float_to_unorm4x8(float4);
uint pack_float_to_snorm4x8(float4);
float4 unpack_unorm4x8_to_float(uint);
float4 unpack_snorm4x8_to_float(uint);
} // namespace metal
