#include "dialect/metal.h"
#include "lib/decode.h"
#include "lib/operand.h"
#include "lib/pass.h"

constant uint DECODE_HEADS = 8;        // query heads of a threadgroup, all of one key head; policy.rs says the same
constant uint DECODE_THREADS = 128;
constant uint DECODE_SIMDGROUPS = 4;

// Keys of a step on their way: lane 4 g + t has of positions g and g + 8 inputs 8 t .. of every 32.
template <uint D> struct StepKeys { uint4 parts[2][D / 32]; };

// Its values: of positions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 columns 8 g .. of every 64.
template <uint D> struct StepValues { uint4 parts[4][D / 64]; };

// Sixteen bytes; NOW: loaded where it stands.
template <bool NOW> inline uint4 part_of(device const half *from) {
  return NOW ? ly_load_now((device const uint4 *)from) : *(device const uint4 *)from;
}

// Keys of the page that has position `t`; its values follow PAGE_TOKENS * D later.
template <uint D>
inline device const half *page_of(device const half *kv, device const uint *table, uint t, uint head_kv, constant DecodeArgs &args) {
  return kv + page_keys(table[t / PAGE_TOKENS], args.layer, args.layers, head_kv, args.heads_kv, D);
}

// Positions first .. of a page, none beyond `last`.
template <uint D, bool NOW>
inline void keys_load(thread StepKeys<D> &keys, device const half *page, uint first, uint last, uint lane) {
#pragma unroll
  for (uint n = 0; n < 2; ++n) {
    device const half *from = page + min(first + 8 * n + lane / 4, last) % PAGE_TOKENS * D + lane % 4 * 8;
#pragma unroll
    for (uint i = 0; i < D / 32; ++i) keys.parts[n][i] = part_of<NOW>(from + i * 32);
  }
}

template <uint D, bool NOW>
inline void values_load(thread StepValues<D> &values, device const half *page, uint first, uint last, uint lane) {
#pragma unroll
  for (uint n = 0; n < 4; ++n) {
    uint t = first + n / 2 * 8 + lane % 4 * 2 + n % 2;
    device const half *from = page + (PAGE_TOKENS + min(t, last) % PAGE_TOKENS) * D + lane / 4 * 8;
#pragma unroll
    for (uint i = 0; i < D / 64; ++i) values.parts[n][i] = part_of<NOW>(from + i * 64);
  }
}

// What a pair of narrowed numbers misses of them.
inline uint missed_pair(uint pair, float first, float second) {
  return narrowed_pair(first - half_of(pair, 0), second - half_of(pair, 1));
}

// The lower and the upper halves of two words.
inline uint lower_halves(uint first, uint second) { return (first & 0xffffu) | second << 16; }
inline uint upper_halves(uint first, uint second) { return first >> 16 | (second & 0xffff0000u); }

// attn_decode_mma: attn_decode on tensor cores.
// Math     part = sum exp(q k - top) v, top, sum exp(q k - top)
// Layout   as attn_decode.
// Work     a simdgroup multiplies the queries of up to eight heads by sixteen keys, from where loads of 16 bytes a lane put
//          them: both operands have their inputs in the same order, and any order will do. Rows of the first product are heads,
//          its columns positions, and that is how a lane must hold weights as columns of the second, whose rows are the
//          columns of values, again in any order. Keys of the next step come while values are multiplied, values while keys
//          are; the first of both before the launch before has ended. Grid: (parts, heads_kv * tiles of heads, rows).
// Numerics queries and weights are two halves each, 22 bits together: those of the queries are rows of one product, as it has
//          sixteen. f32 sums and softmax. Bound by KV bytes.
template <uint D>
kernel void attn_decode_mma(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                            device const uint *pages [[buffer(2)]], device const half *kv [[buffer(3)]],
                            device float *parts [[buffer(4)]], constant DecodeArgs &args [[buffer(5)]],
                            uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<DECODE_THREADS, 2>();
  constexpr uint QUERY_LD = D + 32, OUT_LD = D + 4, STRIDE = DECODE_SIMDGROUPS * DECODE_STEP;
  threadgroup half queries[2 * DECODE_HEADS * (D + 32)];   // as halves, then what these miss
  threadgroup float merged[DECODE_SIMDGROUPS * DECODE_HEADS * (D + 4)];
  threadgroup float tops[DECODE_SIMDGROUPS * DECODE_HEADS];
  threadgroup float totals[DECODE_SIMDGROUPS * DECODE_HEADS];
  uint row = group.z, context = rows[row].y + 1, size = part_positions(context, args.splits, args.block_tokens);
  uint begin = min(group.x * size, context), end = min(begin + size, context);
  if (begin >= end) return;   // nobody reads a part behind the context
  uint per_kv = args.heads_q / args.heads_kv, tiles = (per_kv + DECODE_HEADS - 1) / DECODE_HEADS, head_kv = group.y / tiles;
  uint head_at = group.y % tiles * DECODE_HEADS, head0 = head_kv * per_kv + head_at, used = min(per_kv - head_at, DECODE_HEADS);
  uint g = lane / 4, t = lane % 4, first = begin + simdgroup_at * DECODE_STEP, settled = settled_positions(rows[row], row);
  device const uint *table = pages + rows[row].z;
  StepKeys<D> keys;
  StepValues<D> values;
  if (first < end) {
    uint last = max(min(end, settled), 1u) - 1;
    device const half *page = page_of<D>(kv, table, min(first, last), head_kv, args);
    keys_load<D, true>(keys, page, first, last, lane);
    values_load<D, true>(values, page, first, last, lane);
  }
  ly_wait_previous(projected, kv);
  if (first < end && min(first + DECODE_STEP, end) > settled) {
    device const half *page = page_of<D>(kv, table, first, head_kv, args);
    keys_load<D, false>(keys, page, first, end - 1, lane);
    values_load<D, false>(values, page, first, end - 1, lane);
  }
  float4 query[D / 64];
#pragma unroll
  for (uint n = 0; n < D / 64; ++n) {
    uint i = n * DECODE_THREADS + thread_at, h = i / (D / 4);
    device const float *from = projected + row * args.stride + (head0 + h) * 2 * D + i % (D / 4) * 4;
    query[n] = h < used ? *(device const float4 *)from : float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (uint n = 0; n < D / 64; ++n) {
    uint i = n * DECODE_THREADS + thread_at;
    threadgroup half *to = queries + i / (D / 4) * QUERY_LD + i % (D / 4) * 4;
    float4 q = query[n];
    uint2 whole = uint2(narrowed_pair(q.x, q.y), narrowed_pair(q.z, q.w));
    *(threadgroup uint2 *)to = whole;
    *(threadgroup uint2 *)(to + DECODE_HEADS * QUERY_LD) = uint2(missed_pair(whole.x, q.x, q.y), missed_pair(whole.y, q.z, q.w));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float out[D / 16][4], top = -INFINITY, total = 0.0f;
#pragma unroll
  for (uint i = 0; i < D / 16; ++i)
    for (uint c = 0; c < 4; ++c) out[i][c] = 0.0f;
  threadgroup const half *query_row = queries + g * QUERY_LD + t * 8;
  for (; first < end; first += STRIDE) {
    uint next = first + STRIDE;
    device const half *page = page_of<D>(kv, table, min(next, end - 1), head_kv, args);
    // Two chains of products for eight positions, so that one need not wait for the one before it.
    float s[2][2][4];
    for (uint n = 0; n < 2; ++n)
      for (uint c = 0; c < 8; ++c) s[n][c / 4][c % 4] = 0.0f;
#pragma unroll
    for (uint i = 0; i < D / 32; ++i) {
      uint4 whole = *(threadgroup const uint4 *)(query_row + i * 32);
      uint4 rest = *(threadgroup const uint4 *)(query_row + DECODE_HEADS * QUERY_LD + i * 32);
      for (uint n = 0; n < 2; ++n) {
        uint4 key = keys.parts[n][i];
        ly_mma(s[n][0], whole.x, rest.x, whole.y, rest.y, key.x, key.y);
        ly_mma(s[n][1], whole.z, rest.z, whole.w, rest.w, key.z, key.w);
      }
    }
    if (next < end) keys_load<D, false>(keys, page, next, end - 1, lane);

    float weight[4], peak = top;
#pragma unroll
    for (uint c = 0; c < 4; ++c) {
      uint n = c / 2, at = c % 2;
      weight[c] = ((s[n][0][at] + s[n][1][at]) + (s[n][0][at + 2] + s[n][1][at + 2])) * args.scale;
      if (first + n * 8 + 2 * t + at >= end) weight[c] = -INFINITY;
      peak = max(peak, weight[c]);
    }
    peak = max(peak, simd_shuffle_xor(peak, 1));
    peak = max(peak, simd_shuffle_xor(peak, 2));
    float shrink = exp(top - peak);
    top = peak;
#pragma unroll
    for (uint c = 0; c < 4; ++c) weight[c] = exp(weight[c] - peak);
    total = total * shrink + ((weight[0] + weight[1]) + (weight[2] + weight[3]));
    uint whole0 = ly_pack2(weight[0], weight[1]), whole1 = ly_pack2(weight[2], weight[3]);
    uint rest0 = missed_pair(whole0, weight[0], weight[1]), rest1 = missed_pair(whole1, weight[2], weight[3]);

    // From here on a lane has heads 2 t and 2 t + 1.
    float shrinks[2] = {simd_shuffle(shrink, 8 * t), simd_shuffle(shrink, 8 * t + 4)};
#pragma unroll
    for (uint i = 0; i < D / 16; ++i) {
      for (uint c = 0; c < 4; ++c) out[i][c] *= shrinks[c % 2];
      uint v0 = values.parts[0][i / 4][i % 4], v1 = values.parts[1][i / 4][i % 4];
      uint v8 = values.parts[2][i / 4][i % 4], v9 = values.parts[3][i / 4][i % 4];
      uint a0 = lower_halves(v0, v1), a1 = upper_halves(v0, v1), a2 = lower_halves(v8, v9), a3 = upper_halves(v8, v9);
      ly_mma(out[i], a0, a1, a2, a3, whole0, whole1);
      ly_mma(out[i], a0, a1, a2, a3, rest0, rest1);
    }
    if (next < end) values_load<D, false>(values, page, next, end - 1, lane);
  }

  total += simd_shuffle_xor(total, 1);
  total += simd_shuffle_xor(total, 2);
  if (t == 0) {
    tops[simdgroup_at * DECODE_HEADS + g] = top;
    totals[simdgroup_at * DECODE_HEADS + g] = total;
  }
  threadgroup float *mine = merged + (simdgroup_at * DECODE_HEADS + 2 * t) * OUT_LD + g * 8;
#pragma unroll
  for (uint i = 0; i < D / 16; i += 2)
    for (uint h = 0; h < 2; ++h) {
      threadgroup float *to = mine + h * OUT_LD + i / 4 * 64 + i % 4 * 2;
      *(threadgroup float4 *)to = float4(out[i][h], out[i][h + 2], out[i + 1][h], out[i + 1][h + 2]);
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint n = 0; n < D / 64; ++n) {
    uint i = n * DECODE_THREADS + thread_at, h = i / (D / 4), d = i % (D / 4) * 4;
    float peak = -INFINITY, sum = 0.0f;
    float4 value = float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint w = 0; w < DECODE_SIMDGROUPS; ++w) peak = max(peak, tops[w * DECODE_HEADS + h]);
    for (uint w = 0; w < DECODE_SIMDGROUPS; ++w) {
      float share = exp(tops[w * DECODE_HEADS + h] - peak);
      sum += totals[w * DECODE_HEADS + h] * share;
      value += *(threadgroup const float4 *)(merged + (w * DECODE_HEADS + h) * OUT_LD + d) * share;
    }
    device float *to = parts + ((row * args.heads_q + head0 + h) * args.splits + group.x) * (D + 2);
    if (h < used) {
      *(device float2 *)(to + d) = float2(value.x, value.y);
      *(device float2 *)(to + d + 2) = float2(value.z, value.w);
      if (d == 0) *(device float2 *)(to + D) = float2(peak, sum);
    }
  }
}
LY_KERNEL(attn_decode_mma_64, attn_decode_mma<64>)
LY_KERNEL(attn_decode_mma_128, attn_decode_mma<128>)
LY_KERNEL(attn_decode_mma_256, attn_decode_mma<256>)
