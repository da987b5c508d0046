// Barriers, SIMD-group and quad-group functions.
#pragma once

namespace metal {
enum class mem_flags {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_texture = 4,
    mem_threadgroup_imageblock = 8
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order_ {
    memory_order_relaxed,
    memory_order_acquire,
    memory_order_release,
    memory_order_acq_rel,
    memory_order_seq_cst
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
#define M_(f) \
    void f(mem_flags) __attribute__((convergent)); \
    void f(mem_flags, thread_scope) __attribute__((convergent));
M_(threadgroup_barrier)
M_(simdgroup_barrier)
#undef M_
void atomic_thread_fence(mem_flags, memory_order_, thread_scope = thread_scope_device);
#define GROUP_(p, V) \
    V p##_sum(V); \
    V p##_product(V); \
    V p##_max(V); \
    V p##_min(V); \
    V p##_broadcast(V, ushort); \
    V p##_broadcast_first(V); \
    V p##_shuffle(V, ushort); \
    V p##_shuffle_xor(V, ushort); \
    V p##_shuffle_up(V, ushort); \
    V p##_shuffle_down(V, ushort); \
    V p##_shuffle_rotate_up(V, ushort); \
    V p##_shuffle_rotate_down(V, ushort); \
    V p##_shuffle_and_fill_up(V, V, ushort); \
    V p##_shuffle_and_fill_up(V, V, ushort, ushort); \
    V p##_shuffle_and_fill_down(V, V, ushort); \
    V p##_shuffle_and_fill_down(V, V, ushort, ushort); \
    V p##_prefix_inclusive_sum(V); \
    V p##_prefix_exclusive_sum(V); \
    V p##_prefix_inclusive_product(V); \
    V p##_prefix_exclusive_product(V);
#define GROUP2_(V) GROUP_(simd, V) GROUP_(quad, V)
#define M_(T) WIDTHS_(GROUP2_, T)
M_(float)
M_(half)
EACH_SHORT_INT_(M_)
#undef M_
#define N_(V) \
    V simd_and(V); \
    V simd_or(V); \
    V simd_xor(V); \
    V quad_and(V); \
    V quad_or(V); \
    V quad_xor(V);
#define M_(T) WIDTHS_(N_, T)
EACH_SHORT_INT_(M_)
#undef M_
#undef N_
struct simd_vote {
    using vote_t = ulong;
    explicit simd_vote(vote_t = 0);
    explicit operator vote_t() const;
    bool all() const;
    bool any() const;
};
using quad_vote = simd_vote;
bool simd_all(bool);
bool simd_any(bool);
bool simd_is_first();
bool simd_is_helper_thread();
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();
bool quad_all(bool);
bool quad_any(bool);
bool quad_is_first();
quad_vote quad_ballot(bool);
} // namespace metal
