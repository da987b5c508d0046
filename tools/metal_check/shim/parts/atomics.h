// Atomics: 32-bit int and uint everywhere; float add and sub in device memory only; 64-bit ulong has only max and
// min, in device memory.
#pragma once

namespace metal {
// 32-bit int and uint everywhere; float add/sub in device memory only; 64-bit ulong has only max/min, device only.
template <class T>
struct atomic {
    T v_;
    atomic() = default;
    atomic(const atomic &) = delete;
    void operator=(T) = delete;
};
template <class T>
using _atomic = atomic<T>;
using atomic_int_ = atomic<int>;
using atomic_uint_ = atomic<uint>;
using atomic_float_ = atomic<float>;
using atomic_ulong_ = atomic<ulong>;
using atomic_bool = atomic<bool>;
#define BASIC_(A, T) \
    T atomic_load_explicit(const volatile A atomic<T> *, memory_order_); \
    void atomic_store_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_exchange_explicit(volatile A atomic<T> *, T, memory_order_); \
    bool atomic_compare_exchange_weak_explicit(volatile A atomic<T> *, THR_ T *, T, memory_order_, memory_order_);
#define FETCH_(A, T) \
    T atomic_fetch_add_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_fetch_sub_explicit(volatile A atomic<T> *, T, memory_order_);
#define BITS_(A, T) \
    T atomic_fetch_and_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_fetch_or_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_fetch_xor_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_fetch_max_explicit(volatile A atomic<T> *, T, memory_order_); \
    T atomic_fetch_min_explicit(volatile A atomic<T> *, T, memory_order_);
#define M_(A) BASIC_(A, int) FETCH_(A, int) BITS_(A, int) BASIC_(A, uint) FETCH_(A, uint) BITS_(A, uint) BASIC_(A, bool)
EACH_AS_RW_(M_)
BASIC_(DEV_, float)
FETCH_(DEV_, float)
#undef M_
        void atomic_max_explicit(volatile DEV_ atomic<ulong> *, ulong, memory_order_);
void atomic_min_explicit(volatile DEV_ atomic<ulong> *, ulong, memory_order_);
} // namespace metal
