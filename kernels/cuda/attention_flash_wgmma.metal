#include "dialect/metal.h"
#include "lib/operand.h"
#include "lib/pass.h"
#include "lib/flash.h"

constant uint FLASH_ROWS = 128;      // query rows of a tile: tokens times the query heads of one key head
constant uint FLASH_THREADS = 256;
constant uint STEP = 64;             // positions of a step
constant uint KEY_STEPS = 3;         // steps of keys in threadgroup memory
constant uint VALUE_STEPS = 2;       // and of values
constant float LOG2_E = 1.4426950408889634f;

// Brings positions t0 .. t0 + STEP of keys or values, 64 of D a block; zeros behind the context, where nothing has ever been
// written. A thread has the same 16 bytes of every FLASH_THREADS / (D / 8)th position, a multiple of eight.
template <uint D>
inline void step_copy(threadgroup ly_swizzled<STEP> *to, device const half *from, uint t0, uint context, uint thread_at) {
  constexpr uint PARTS = D / 8, APART = FLASH_THREADS / PARTS;
  uint part = thread_at % PARTS, first = thread_at / PARTS;
  device const half *mine = from + first * D + part * 8;
  if (t0 + STEP <= context) {
#pragma unroll
    for (uint i = 0; i < STEP; i += APART) ly_copy16(ly_swizzled_at(to[part / 8], first + i, part % 8), mine + i * D);
  } else {
    for (uint i = 0; i < STEP; i += APART) {
      threadgroup half *place = ly_swizzled_at(to[part / 8], first + i, part % 8);
      if (t0 + first + i < context) ly_copy16(place, mine + i * D);
      else *(threadgroup uint4 *)place = uint4(0u, 0u, 0u, 0u);
    }
  }
}

// The keys and values of one sequence and key head.
struct Past {
  device const half *kv;
  device const uint *table;
  uint layer;
  uint layers;
  uint head;
  uint heads;
  uint context;
};

// Keys (or values) of step `step`, in this page; nothing behind the last.
template <uint D, bool VALUES>
inline void page_copy(threadgroup ly_swizzled<STEP> *to, thread const Past &past, uint page, uint step, uint thread_at) {
  uint t0 = step * STEP;
  if (t0 >= past.context) return;
  ulong keys = page_keys(page, past.layer, past.layers, past.head, past.heads, D);
  uint at = t0 % PAGE_TOKENS * D + (VALUES ? PAGE_TOKENS * D : 0);
  step_copy<D>(to, past.kv + keys + at, t0, past.context, thread_at);
}

template <uint D, bool VALUES>
inline void past_copy(threadgroup ly_swizzled<STEP> *to, thread const Past &past, uint step, uint thread_at) {
  if (step * STEP < past.context) page_copy<D, VALUES>(to, past, past.table[step * STEP / PAGE_TOKENS], step, thread_at);
}

// The query rows of a tile: heads of a token, one token after the other.
struct Queries {
  device const float *from;   // the first head of the first token
  uint heads;
  uint stride;
  uint used;
  float scale;
};

template <uint D> inline device const float *query_row(thread const Queries &q, uint m) {
  return q.from + m / q.heads * q.stride + m % q.heads * 2 * D;
}

// A thread brings eight values of every so manyth row, of N rows at a time.
template <uint N> struct QueryParts { float4 parts[2 * N]; };

template <uint D> inline uint query_part_row(uint i, uint thread_at) { return (i * FLASH_THREADS + thread_at) / (D / 8); }

template <uint D, uint N>
inline void queries_load(thread QueryParts<N> &in, thread const Queries &q, uint first, uint thread_at) {
#pragma unroll
  for (uint i = 0; i < N; ++i) {
    uint m = query_part_row<D>(first + i, thread_at);
    // Rows that are not there are the first, times zero.
    device const float4 *from = (device const float4 *)(query_row<D>(q, m < q.used ? m : 0) + thread_at % (D / 8) * 8);
    in.parts[2 * i] = from[0];
    in.parts[2 * i + 1] = from[1];
  }
}

template <uint D, uint N>
inline void queries_store(threadgroup ly_swizzled<FLASH_ROWS> *to, thread const QueryParts<N> &in, thread const Queries &q,
                          uint first, uint thread_at) {
#pragma unroll
  for (uint i = 0; i < N; ++i) {
    uint m = query_part_row<D>(first + i, thread_at), part = thread_at % (D / 8);
    float scale = m < q.used ? q.scale : 0.0f;
    float4 a = in.parts[2 * i], b = in.parts[2 * i + 1];
    uint4 four;
    four.x = narrowed_pair(a.x * scale, a.y * scale);
    four.y = narrowed_pair(a.z * scale, a.w * scale);
    four.z = narrowed_pair(b.x * scale, b.y * scale);
    four.w = narrowed_pair(b.z * scale, b.w * scale);
    *(threadgroup uint4 *)ly_swizzled_at(to[part / 8], m, part % 8) = four;
  }
}

// s = 64 query rows from `row` on times the keys of a step.
template <uint D>
inline void scores(thread float *s, threadgroup const ly_swizzled<FLASH_ROWS> *queries, uint row,
                   threadgroup const ly_swizzled<STEP> *keys) {
#pragma unroll
  for (uint i = 0; i < D / 16; ++i) ly_wgmma_shared<STEP>(s, queries[i / 4], row, keys[i / 4], i % 4, i > 0);
}

// out += weights times the values of a step.
template <uint D> inline void add_values(thread float *out, thread const uint *p, threadgroup const ly_swizzled<STEP> *values) {
#pragma unroll
  for (uint i = 0; i < STEP / 16; ++i) ly_wgmma_across<D>(out, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], values, i);
}

// What is known of the lane's two rows so far.
struct Rows {
  float top[2];
  float sums[2];
  uint last[2];   // the last positions that they may see
};

// Scores of positions t0 .. become weights. `share` is what earlier weights shrink by.
inline void soften(thread float *s, thread Rows &rows, thread float *share, uint t0, bool masked, uint t) {
  if (masked) {
#pragma unroll
    for (uint i = 0; i < STEP / 2; ++i)
      if (t0 + i / 4 * 8 + 2 * t + i % 2 > rows.last[i % 4 / 2]) s[i] = -INFINITY;
  }
#pragma unroll
  for (uint h = 0; h < 2; ++h) {
    float peak = rows.top[h];
#pragma unroll
    for (uint i = 2 * h; i < STEP / 2; i += 4) peak = max(peak, max(s[i], s[i + 1]));
    peak = max(peak, simd_shuffle_xor(peak, 1));
    peak = max(peak, simd_shuffle_xor(peak, 2));
    share[h] = ly_exp2(rows.top[h] - peak);
    rows.top[h] = peak;
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (uint i = 2 * h; i < STEP / 2; i += 4) {
      s[i] = ly_exp2(s[i] - peak);
      s[i + 1] = ly_exp2(s[i + 1] - peak);
      even += s[i];
      odd += s[i + 1];
    }
    rows.sums[h] = rows.sums[h] * share[h] + (even + odd);
  }
}

// Weights as the first operands of their products.
inline void operands(thread uint *p, thread const float *s) {
#pragma unroll
  for (uint i = 0; i < STEP / 4; ++i) p[i] = ly_pack2(s[2 * i], s[2 * i + 1]);
}

// A division would be a dozen instructions and a branch, 128 times a lane.
inline float sigmoid(float x) {
  float root = rsqrt(1.0f + ly_exp2(x * -LOG2_E));
  return root * root;
}

// The lane's part of a row's gates, all on their way together: a load behind a store would wait for it.
template <uint D> inline void gates_load(thread float2 *gates, thread const Queries &q, uint m, uint t) {
  device const float *from = query_row<D>(q, m < q.used ? m : 0) + D + 2 * t;
#pragma unroll
  for (uint i = 0; i < D / 8; ++i) gates[i] = *(device const float2 *)(from + i * 8);
}

// attn_flash_wgmma: attn_flash on warpgroups.
// Math     mixed = softmax(q k / sqrt(D)) v * sigmoid(gate); scores are in powers of two, log2(e) is part of the queries' scale.
// Layout   as attn_flash, with tiles of FLASH_ROWS query rows.
// Work     two groups of four simdgroups have 64 query rows each, of all query heads of one key head; scores, weights and the
//          result stay in their registers, queries in threadgroup memory. While values are multiplied by a step's weights,
//          the next step's scores become weights. The scores' products are under way when all meet, so that a group that
//          comes early leaves no gap; keys and values come one step ahead at least, KEY_STEPS of keys and VALUE_STEPS of
//          values are there or on their way. The longest tiles go first. Grid: (tiles, heads_kv).
// Numerics f16 operands (queries and weights rounded), f32 sums and softmax. Bound by multiply-adds and by the reads of
//          operands from threadgroup memory.
template <uint D>
kernel void attn_flash_wgmma(device const float *projected [[buffer(0)]], device const uint4 *tiles [[buffer(1)]],
                             device const uint *pages [[buffer(2)]], device const half *kv [[buffer(3)]],
                             device half *mixed [[buffer(4)]], constant FlashArgs &args [[buffer(5)]],
                             uint3 group [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
                             uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<FLASH_THREADS, 1>();
  ly_threadgroup_kib<224>();
  threadgroup ly_swizzled<FLASH_ROWS> queries[D / 64];
  threadgroup ly_swizzled<STEP> keys[KEY_STEPS * D / 64];
  threadgroup ly_swizzled<STEP> values[VALUE_STEPS * D / 64];
  uint4 tile = tiles[grid.x - 1 - group.x];
  uint heads = args.heads_q / args.heads_kv, head_kv = group.y, used = tile.y * heads, t = lane % 4;
  Past past;
  past.kv = kv;
  past.table = pages + tile.w;
  past.layer = args.layer;
  past.layers = args.layers;
  past.head = head_kv;
  past.heads = args.heads_kv;
  past.context = tile.z + tile.y;
  Queries q;
  q.from = projected + tile.x * args.stride + head_kv * heads * 2 * D;
  q.heads = heads;
  q.stride = args.stride;
  q.used = used;
  q.scale = args.scale * LOG2_E;
  uint page = past.table[0];
  // Of each thread's parts of queries, and of those that are on their way together.
  constexpr uint PARTS = FLASH_ROWS * (D / 8) / FLASH_THREADS, TOGETHER = PARTS < 8 ? PARTS : 8;
  QueryParts<TOGETHER> parts;
  queries_load<D, TOGETHER>(parts, q, 0, thread_at);
  for (uint i = 0; i < 2; ++i) page_copy<D, false>(keys + i * (D / 64), past, page, i, thread_at);
  ly_copy_commit();
  page_copy<D, false>(keys + 2 * (D / 64), past, page, 2, thread_at);
  page_copy<D, true>(values, past, page, 0, thread_at);
  ly_copy_commit();
  queries_store<D, TOGETHER>(queries, parts, q, 0, thread_at);
  for (uint first = TOGETHER; first < PARTS; first += TOGETHER) {
    queries_load<D, TOGETHER>(parts, q, first, thread_at);
    queries_store<D, TOGETHER>(queries, parts, q, first, thread_at);
  }
  uint upper = simdgroup_at * 16 + lane / 4;
  Rows rows;
  for (uint h = 0; h < 2; ++h) {
    rows.last[h] = tile.z + (upper + 8 * h) / heads;
    rows.top[h] = -INFINITY;
    rows.sums[h] = 0.0f;
  }
  // The compiler should know that it is the same for all lanes.
  uint row0 = simd_broadcast(simdgroup_at / 4 * 64, 0);
  float s[STEP / 2], out[D / 2], share[2];
#pragma unroll
  for (uint i = 0; i < STEP / 2; ++i) s[i] = 0.0f;
#pragma unroll
  for (uint i = 0; i < D / 2; ++i) out[i] = 0.0f;
  uint p[STEP / 4];
  ly_copy_wait<1>();
  ly_wgmma_see();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_wgmma_begin();
  scores<D>(s, queries, row0, keys);
  ly_wgmma_end<STEP>(s);
  soften(s, rows, share, 0, STEP > tile.z, t);
  operands(p, s);
  uint key_at = 1, value_at = 0;
  for (uint step = 1; step * STEP < past.context; ++step) {
    ly_wgmma_begin();
    scores<D>(s, queries, row0, keys + key_at * (D / 64));
    ly_wgmma_commit();
    // The next keys, and the values before them; all are done with the keys and values of two steps before.
    ly_copy_wait<0>();
    ly_wgmma_see();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ly_wgmma_begin();
    add_values<D>(out, p, values + value_at * (D / 64));
    ly_wgmma_commit();
    uint key_free = key_at == 0 ? KEY_STEPS - 1 : key_at - 1, value_free = 1 - value_at;
    past_copy<D, false>(keys + key_free * (D / 64), past, step + 2, thread_at);
    past_copy<D, true>(values + value_free * (D / 64), past, step, thread_at);
    ly_copy_commit();
    ly_wgmma_before_last<STEP>(s);
    uint changed = 0;
    // The branch keeps it from sinking behind the wait.
    if (simdgroup_at * 16 < used) {
      soften(s, rows, share, step * STEP, step * STEP + STEP > tile.z, t);
      changed = simd_max(share[0] < 1.0f || share[1] < 1.0f ? 1u : 0u);
    }
    ly_wgmma_all<D>(out);
    // Rarely so after the first steps.
    if (changed != 0) {
#pragma unroll
      for (uint i = 0; i < D / 2; ++i) out[i] *= share[i % 4 / 2];
    }
    operands(p, s);
    key_at = key_at + 1 == KEY_STEPS ? 0 : key_at + 1;
    value_at = value_free;
  }
  // Gates of the upper row come during the last products.
  float2 gates[D / 8];
  gates_load<D>(gates, q, upper, t);
  ly_copy_wait<0>();
  ly_wgmma_see();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_wgmma_begin();
  add_values<D>(out, p, values + value_at * (D / 64));
  ly_wgmma_end<D>(out);
#pragma unroll
  for (uint h = 0; h < 2; ++h) {
    float sum = rows.sums[h];
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    float one = 1.0f / sum;
    uint m = upper + 8 * h;
    device half *to = mixed + (tile.x + m / heads) * args.mixed_stride + (head_kv * heads + m % heads) * D + 2 * t;
    uint pairs[D / 8];
#pragma unroll
    for (uint i = 0; i < D / 8; ++i) {
      float first = out[4 * i + 2 * h] * one * sigmoid(gates[i].x), second = out[4 * i + 2 * h + 1] * one * sigmoid(gates[i].y);
      pairs[i] = narrowed_pair(first, second);
    }
    if (h == 0) gates_load<D>(gates, q, m + 8, t);
    if (m < used)
#pragma unroll
      for (uint i = 0; i < D / 8; ++i) *(device uint *)(to + i * 8) = pairs[i];
  }
}
LY_KERNEL(attn_flash_wgmma_64, attn_flash_wgmma<64>)
LY_KERNEL(attn_flash_wgmma_128, attn_flash_wgmma<128>)
LY_KERNEL(attn_flash_wgmma_256, attn_flash_wgmma<256>)
