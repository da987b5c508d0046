// Predefined macros, and names that OpenCL reserves but Metal does not.
#pragma once

#define __METAL__ 1
#define __METAL_VERSION__ 400
#define __METAL_MACOS__ 1
#define __HAVE_BFLOAT__ 1
#define __HAVE_TENSOR__ 1
#define __METAL_MAYBE_FAST_MATH__ 1
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 0
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST_ARG(x)
#define global global_
#define local local_
#define generic generic_
#define pipe pipe_
#define read_only read_only_
#define write_only write_only_
#define read_write read_write_
#define uniform uniform_
#define atomic_int atomic_int_
#define atomic_uint atomic_uint_
#define atomic_long atomic_long_
#define atomic_ulong atomic_ulong_
#define atomic_float atomic_float_
#define atomic_flag atomic_flag_
#define memory_order memory_order_
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF INFINITY
#define MAXHALF 0x1.ffcp15h
#define MAXFLOAT 0x1.fffffep127f
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
#define HALF_MAX 0x1.ffcp15h
#define HALF_MIN 0x1.0p-14h
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H 3.14159265358979323846h
#define M_LOG2E_H 1.44269504088896340736h
#define M_SQRT2_H 1.41421356237309504880h
