#include "dialect/metal.h"
#include "lib/decode.h"
#include "lib/halves.h"
#include "lib/pass.h"

// Attention of a few rows, and what prepares queries, keys and values for any number of them; with many rows see
// attention_flash.metal. projected of a row: per query head the query, then its gate; then keys; then values.

constant uint HEAD_DIM_MAX = 256;

// WIDE consecutive values of a key or value row as they are stored.
template <uint WIDE> struct RowPart { uint words[(WIDE + 1) / 2]; };

// With the widest load that their alignment allows.
template <uint WIDE> inline void part_load(thread RowPart<WIDE> &part, device const half *from) {
  if (WIDE == 8) {
    uint4 four = *(device const uint4 *)from;
    part.words[0] = four.x;
    part.words[WIDE / 8] = four.y;
    part.words[WIDE / 4] = four.z;
    part.words[(WIDE - 1) / 2] = four.w;
  } else if (WIDE == 4) {
    uint2 two = *(device const uint2 *)from;
    part.words[0] = two.x;
    part.words[(WIDE - 1) / 2] = two.y;
  } else if (WIDE == 2) {
    part.words[0] = *(device const uint *)from;
  } else {
    part.words[0] = uint(*(device const ushort *)from);
  }
}

template <uint WIDE> inline float part_value(thread const RowPart<WIDE> &part, uint i) {
  return float(as_type<half>(ushort(part.words[i / 2] >> (i % 2 * 16) & 0xffffu)));
}

struct PrepareArgs {
  uint layer, layers;   // of this layer among the attention layers; how many there are
  uint heads_q, heads_kv, head_dim, rotary_dim, stride;
  float eps;
};

// attn_prepare: norm and rotary embedding of queries and keys; keys and values enter the pages.
// Math     x = rms(x) * gain; (x_d, x_{d+h}) rotated by position * theta^(-d/h), d < h = rotary_dim / 2
// Layout   projected [rows, stride] f32, queries and keys in place; kv see lib/pass.h. The rotation of position p is the
//          product of two unit complex numbers from tables made in f64: turns [pages, h] of p / 256, then of p % 256.
// Work     a simdgroup a head of a row: queries, keys, values. Grid: (rows, heads / simdgroups).
// Numerics f32; keys and values rounded to f16. Bound by bytes.
kernel void attn_prepare(device float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                         device const uint *pages [[buffer(2)]], device const float *q_gain [[buffer(3)]],
                         device const float *k_gain [[buffer(4)]], device const float2 *page_turns [[buffer(5)]],
                         device const float2 *turns [[buffer(6)]], device half *kv [[buffer(7)]],
                         constant PrepareArgs &args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                         uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float heads_at[4 * HEAD_DIM_MAX];
  constexpr uint EACH = HEAD_DIM_MAX / 32;
  uint heads = args.heads_q + 2 * args.heads_kv, wanted = group.y * simdgroups + simdgroup_at, head = min(wanted, heads - 1);
  uint row = group.x, position = rows[row].y, dim = args.head_dim, half_dim = args.rotary_dim / 2;
  bool is_query = head < args.heads_q, is_value = head >= args.heads_q + args.heads_kv;
  device const float *gain = is_query ? q_gain : k_gain;
  threadgroup float *values = heads_at + simdgroup_at * HEAD_DIM_MAX;
  uint page = pages[rows[row].z + position / PAGE_TOKENS];
  uint head_kv = is_value ? head - args.heads_q - args.heads_kv : head - args.heads_q;
  device half *store = kv + page_keys(page, args.layer, args.layers, is_query ? 0 : head_kv, args.heads_kv, dim) +
                         ((is_value ? PAGE_TOKENS : 0) + position % PAGE_TOKENS) * dim;
  // Gains and rotations need no launch before this one. What is not rotated is rotated by nothing.
  float gains[EACH], cosine[EACH], sine[EACH];
  for (uint n = 0; n < EACH; ++n) {
    uint i = lane + 32 * n;
    gains[n] = i < dim && !is_value ? gain[i] : 0.0f;
    cosine[n] = 1.0f;
    sine[n] = 0.0f;
    if (!is_value && i < args.rotary_dim) {
      uint d = i % half_dim;
      float2 a = page_turns[position / PAGE_TOKENS * half_dim + d], b = turns[position % PAGE_TOKENS * half_dim + d];
      cosine[n] = a.x * b.x - a.y * b.y;
      sine[n] = a.x * b.y + a.y * b.x;
    }
  }
  ly_wait_previous();
  device float *at = projected + row * args.stride + (is_query ? head * 2 * dim : (head + args.heads_q) * dim);
  float value[EACH], square = 0.0f;
  for (uint n = 0; n < EACH; ++n) {
    value[n] = lane + 32 * n < dim ? at[lane + 32 * n] : 0.0f;
    square += value[n] * value[n];
  }
  float scale = rsqrt(simd_sum(square) / float(dim) + args.eps);
  for (uint n = 0; n < EACH; ++n) {
    if (!is_value) value[n] *= scale * gains[n];
    if (lane + 32 * n < dim) values[lane + 32 * n] = value[n];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint n = 0; n < EACH; ++n) {
    uint i = lane + 32 * n;
    if (i < dim && wanted < heads) {
      float turned = value[n] * cosine[n];
      if (!is_value && i < args.rotary_dim) turned += i < half_dim ? -values[i + half_dim] * sine[n] : values[i - half_dim] * sine[n];
      if (!is_value) at[i] = turned;
      if (!is_query) store[i] = narrowed(turned);
    }
  }
}

// A lane's part of four positions.
template <uint WIDE> struct PositionParts {
  RowPart<WIDE> keys[4];
  RowPart<WIDE> values[4];
};

// Positions first .. first + 4, none beyond `last`.
template <uint D>
inline void positions_load(thread PositionParts<D / 32> &parts, device const half *kv, device const uint *table, uint first, uint last,
                           uint head_kv, constant DecodeArgs &args, uint lane) {
  for (uint j = 0; j < 4; ++j) {
    uint t = min(first + j, last);
    device const half *key = kv + page_keys(table[t / PAGE_TOKENS], args.layer, args.layers, head_kv, args.heads_kv, D) +
                             t % PAGE_TOKENS * D + lane * (D / 32);
    part_load<D / 32>(parts.keys[j], key);
    part_load<D / 32>(parts.values[j], key + PAGE_TOKENS * D);
  }
}

// attn_decode: one row's queries over one part of its context.
// Math     part = sum exp(q k - top) v, top, sum exp(q k - top)
// Layout   projected, kv as attn_prepare left them; parts [rows, heads_q, splits, D + 2] f32: values, top, sum.
// Work     PACK query heads that share a key head read each of its rows once. A simdgroup takes four positions at a time;
//          COALESCED: its lanes stripe the row, 16 bytes each where D is 256; else a lane reads a whole row, as the
//          comparison. Parts are a fixed share of the context, or, from some length on, fixed blocks of positions.
//          Grid: (parts, heads_q / PACK, rows), four simdgroups.
// Numerics f32 on f16 keys and values. Bound by KV bytes.
template <uint D, uint PACK, bool COALESCED>
kernel void attn_decode(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                        device const uint *pages [[buffer(2)]], device const half *kv [[buffer(3)]],
                        device float *parts [[buffer(4)]], constant DecodeArgs &args [[buffer(5)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint WIDE = D / 32;
  threadgroup float merged[4 * PACK * D];
  threadgroup float tops[4 * PACK];
  threadgroup float totals[4 * PACK];
  threadgroup float queries[PACK * D];
  threadgroup float weights[4 * PACK * 32];
  uint row = group.z, head0 = group.y * PACK, head_kv = head0 / (args.heads_q / args.heads_kv), context = rows[row].y + 1;
  uint size = part_positions(context, args.splits, args.block_tokens);
  uint begin = min(group.x * size, context), end = min(begin + size, context);
  device const uint *table = pages + rows[row].z;
  // Only positions of the row's span are written by a launch of this pass: the first of the others are on their way before
  // the launch before has ended.
  uint first = begin + simdgroup_at * 4, settled = max(settled_positions(rows[row], row), 1u) - 1;
  PositionParts<WIDE> here;
  if (COALESCED) positions_load<D>(here, kv, table, first, min(end - 1, settled), head_kv, args, lane);
  ly_wait_previous(projected, kv);
  device const float *from = projected + row * args.stride;
  float q[PACK][WIDE], acc[PACK][WIDE], top[PACK], total[PACK];
  for (uint h = 0; h < PACK; ++h) {
    top[h] = -INFINITY;
    total[h] = 0.0f;
    device const float *query = from + (head0 + h) * 2 * D + lane * WIDE;
    if (WIDE % 4 == 0) {
      for (uint i = 0; i < WIDE / 4; ++i) {
        float4 four = *(device const float4 *)(query + 4 * i) * args.scale;
        q[h][4 * i] = four.x;
        q[h][(4 * i + 1) % WIDE] = four.y;
        q[h][(4 * i + 2) % WIDE] = four.z;
        q[h][(4 * i + 3) % WIDE] = four.w;
      }
    } else {
      for (uint i = 0; i < WIDE; ++i) q[h][i] = query[i] * args.scale;
    }
    for (uint i = 0; i < WIDE; ++i) acc[h][i] = 0.0f;
  }
  if (COALESCED) {
    if (first + 3 > settled) positions_load<D>(here, kv, table, first, end - 1, head_kv, args, lane);
    for (; first < end; first += 16) {
      PositionParts<WIDE> following;
      if (first + 16 < end) positions_load<D>(following, kv, table, first + 16, end - 1, head_kv, args, lane);
      float k[4][WIDE], v[4][WIDE];
      for (uint j = 0; j < 4; ++j)
        for (uint i = 0; i < WIDE; ++i) {
          k[j][i] = part_value(here.keys[j], i);
          v[j][i] = part_value(here.values[j], i);
        }
      for (uint h = 0; h < PACK; ++h) {
        float4 score = float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint i = 0; i < WIDE; ++i) score += float4(k[0][i], k[1][i], k[2][i], k[3][i]) * q[h][i];
        score = simd_sum(score);
        if (first + 1 >= end) score.y = -INFINITY;
        if (first + 2 >= end) score.z = -INFINITY;
        if (first + 3 >= end) score.w = -INFINITY;
        float peak = max(max(top[h], max(score.x, score.y)), max(score.z, score.w)), shrink = exp(top[h] - peak);
        float4 weight = float4(exp(score.x - peak), exp(score.y - peak), exp(score.z - peak), exp(score.w - peak));
        top[h] = peak;
        total[h] = total[h] * shrink + ((weight.x + weight.y) + (weight.z + weight.w));
        for (uint i = 0; i < WIDE; ++i)
          acc[h][i] = acc[h][i] * shrink + ((weight.x * v[0][i] + weight.y * v[1][i]) + (weight.z * v[2][i] + weight.w * v[3][i]));
      }
      here = following;
    }
  } else {
    for (uint i = thread_at; i < PACK * D; i += 128) queries[i] = from[(head0 + i / D) * 2 * D + i % D] * args.scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint t0 = begin + simdgroup_at * 32; t0 < end; t0 += 128) {
      uint mine = min(t0 + lane, end - 1), count = min(32u, end - t0);
      device const half *key =
          kv + page_keys(table[mine / PAGE_TOKENS], args.layer, args.layers, head_kv, args.heads_kv, D) + mine % PAGE_TOKENS * D;
      for (uint h = 0; h < PACK; ++h) {
        float score = 0.0f;
        for (uint i = 0; i < D; ++i) score += queries[h * D + i] * float(key[i]);
        if (lane >= count) score = -INFINITY;
        float peak = max(top[h], simd_max(score)), shrink = exp(top[h] - peak), weight = exp(score - peak);
        top[h] = peak;
        total[h] = total[h] * shrink + simd_sum(weight);
        weights[(simdgroup_at * PACK + h) * 32 + lane] = weight;
        for (uint i = 0; i < WIDE; ++i) acc[h][i] *= shrink;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint j = 0; j < count; ++j) {
        uint t = t0 + j;
        device const half *value = kv + page_keys(table[t / PAGE_TOKENS], args.layer, args.layers, head_kv, args.heads_kv, D) +
                                     (PAGE_TOKENS + t % PAGE_TOKENS) * D + lane * WIDE;
        for (uint i = 0; i < WIDE; ++i)
          for (uint h = 0; h < PACK; ++h) acc[h][i] += weights[(simdgroup_at * PACK + h) * 32 + j] * float(value[i]);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  for (uint h = 0; h < PACK; ++h) {
    for (uint i = 0; i < WIDE; ++i) merged[(simdgroup_at * PACK + h) * D + lane * WIDE + i] = acc[h][i];
    if (lane == 0) {
      tops[simdgroup_at * PACK + h] = top[h];
      totals[simdgroup_at * PACK + h] = total[h];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_at; i < PACK * D; i += 128) {
    uint h = i / D, at = i % D;
    float peak = -INFINITY, sum = 0.0f, value = 0.0f;
    for (uint g = 0; g < 4; ++g) peak = max(peak, tops[g * PACK + h]);
    for (uint g = 0; g < 4; ++g) {
      float share = totals[g * PACK + h] > 0.0f ? exp(tops[g * PACK + h] - peak) : 0.0f;
      sum += totals[g * PACK + h] * share;
      value += merged[(g * PACK + h) * D + at] * share;
    }
    device float *to = parts + ((row * args.heads_q + head0 + h) * args.splits + group.x) * (D + 2);
    to[at] = value;
    if (at == 0) {
      to[D] = peak;
      to[D + 1] = sum;
    }
  }
}
LY_KERNEL(attn_decode_32_1, attn_decode<32, 1, true>)
LY_KERNEL(attn_decode_32_2, attn_decode<32, 2, true>)
LY_KERNEL(attn_decode_32_4, attn_decode<32, 4, true>)
LY_KERNEL(attn_decode_64_1, attn_decode<64, 1, true>)
LY_KERNEL(attn_decode_64_2, attn_decode<64, 2, true>)
LY_KERNEL(attn_decode_64_4, attn_decode<64, 4, true>)
LY_KERNEL(attn_decode_128_1, attn_decode<128, 1, true>)
LY_KERNEL(attn_decode_128_2, attn_decode<128, 2, true>)
LY_KERNEL(attn_decode_128_4, attn_decode<128, 4, true>)
LY_KERNEL(attn_decode_256_1, attn_decode<256, 1, true>)
LY_KERNEL(attn_decode_256_2, attn_decode<256, 2, true>)
LY_KERNEL(attn_decode_256_4, attn_decode<256, 4, true>)
LY_KERNEL(attn_decode_strided_256_1, attn_decode<256, 1, false>)
LY_KERNEL(attn_decode_strided_256_4, attn_decode<256, 4, false>)

constant uint PARTS_MAX = 1024;   // of a context; policy.rs says the same
constant uint COMBINE_THREADS = 512;
constant uint COMBINE_VALUES = 32;   // of a head that a threadgroup makes

struct CombinePartsArgs { uint heads_q, head_dim, splits, block_tokens, stride, mixed_stride, halves; };   // halves: see lib/halves.h

// attn_combine: the parts of a row's context together, times the gate.
// Math     mixed = sum_p exp(top_p - top) part_p / sum_p exp(top_p - top) sum_p * sigmoid(gate)
// Layout   parts as attn_decode wrote them; gate in projected; mixed [rows, mixed_stride] f32.
// Work     a threadgroup makes COMBINE_VALUES of a head of a row: its threads share the parts of each.
//          Grid: (heads, rows, values / COMBINE_VALUES). Numerics f32, f32 to the end. Bound by latency.
kernel void attn_combine(device const float *parts [[buffer(0)]], device const float *projected [[buffer(1)]],
                         device const uint4 *rows [[buffer(2)]], device float *mixed [[buffer(3)]],
                         constant CombinePartsArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint head = group.x, row = group.y, dim = args.head_dim, context = rows[row].y + 1;
  uint size = part_positions(context, args.splits, args.block_tokens);
  uint used = min((context + size - 1) / size, args.splits), threads = simdgroups * 32;
  threadgroup float share[PARTS_MAX];
  threadgroup float values[COMBINE_THREADS];
  // Threads share a value's parts, eight of which are on their way at a time: the first of them before they are weighed.
  uint count = min(dim, COMBINE_VALUES), sharers = threads / count, sharer = thread_at / count;
  uint i = group.z * COMBINE_VALUES + thread_at % count;
  ly_wait_previous(parts, projected);
  device const float *from = parts + (row * args.heads_q + head) * args.splits * (dim + 2);
  float part[8], gate = projected[row * args.stride + head * 2 * dim + dim + i];
  for (uint u = 0; u < 8; ++u) {
    uint p = sharer + u * sharers;
    part[u] = sharer < sharers && p < used ? from[p * (dim + 2) + i] : 0.0f;
  }
  if (simdgroup_at == 0) {
    float top = -INFINITY, sum = 0.0f;
    for (uint p = lane; p < used; p += 32) {
      float part_top = from[p * (dim + 2) + dim], part_sum = from[p * (dim + 2) + dim + 1], peak = max(top, part_top);
      sum = sum * exp(top - peak) + part_sum * exp(part_top - peak);
      top = peak;
      share[p] = part_top;
    }
    float peak = simd_max(top);
    sum = simd_sum(top == -INFINITY ? 0.0f : sum * exp(top - peak));
    for (uint p = lane; p < used; p += 32) share[p] = exp(share[p] - peak) / sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = 0.0f;
  if (sharer < sharers)
    for (uint first = sharer; first < used; first += sharers * 8) {
      for (uint u = 0; u < 8; ++u) {
        uint p = first + u * sharers;
        if (p < used) value += (first == sharer ? part[u] : from[p * (dim + 2) + i]) * share[p];
      }
    }
  values[thread_at] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_at < count) {
    for (uint g = 1; g < sharers; ++g) value += values[g * count + thread_at];
    value = value / (1.0f + exp(-gate));
    mixed[row * args.mixed_stride + head * dim + i] = value;
    if (args.halves > 0) halves_store<4>(mixed + args.halves + row * args.heads_q * dim, head * dim + i, value);
  }
}
