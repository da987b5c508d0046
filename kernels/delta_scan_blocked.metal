#include "dialect/metal.h"
#include "lib/delta.h"

// The scan of the Gated DeltaNet mixer in blocks of four tokens, exact: only the order of sums differs from delta_scan.
//
// With A_i = a_1 .. a_i and R_ij = a_{j+1} .. a_i over a block's decays, and S the state before the block:
//   d_i = b_i (v_i - A_i S k_i - sum_{j<i} R_ij (k_j k_i) d_j)
//   o_i = A_i S q_i + sum_{j<=i} R_ij (k_j q_i) d_j;  S <- A_4 S + sum_j R_4j d_j k_j^T
// What depends on tokens only is made once for all columns: `factors`, 32 floats a block and value head.

constant uint BLOCK = 4;      // tokens that are solved together
constant uint STAGE = 8;      // tokens that are brought into threadgroup memory together
constant uint COLUMNS = 32;   // columns of a threadgroup
constant uint FACTORS = 32;
constant uint REST = 4;       // of the factors: A_i from 0, R_4i from here,
constant uint BETA = 8;       // b_i,
constant uint KEYS_AT = 12;   // R_ij (k_j k_i), i from 1, j below i: 6 of them,
constant uint READS_AT = 18;  // R_ij (k_j q_i), i from 0, j up to i: 10.

// Where the factors of a block start: spans follow each other with room for the block that is not full.
inline uint block_at(uint span_at, uint4 span, uint block, uint head, uint heads_v) {
  return ((span.x + 3 * span_at) / BLOCK + span_at + block) * heads_v * FACTORS + head * FACTORS;
}

// delta_factors: the factors of all blocks.
// Layout   inputs, gates as delta_conv wrote them; factors [blocks, heads_v, 32] f32.
// Work     a threadgroup a block and key head: a simdgroup makes eight products, then a lane the factors of a value head.
//          Tokens behind the span's last neither decay nor write. Grid: (blocks of the longest span, key heads, spans).
template <uint DK>
kernel void delta_factors(device const float *inputs [[buffer(0)]], device const float2 *gates [[buffer(1)]],
                          device const uint4 *spans [[buffer(2)]], device float *factors [[buffer(3)]],
                          constant DeltaArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  threadgroup float products[2 * BLOCK * BLOCK];   // k_j k_i, then k_j q_i
  uint4 span = spans[group.z];
  uint first = group.x * BLOCK, head_k = group.y, shared_by = args.heads_v / args.heads_k;
  if (first >= span.y) return;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v, i = simdgroup_at;
  device const float *from = inputs + (span.x + first) * channels;
  for (uint j = 0; j < BLOCK; ++j) {
    float2 product = float2(0.0f, 0.0f);
    if (first + max(i, j) < span.y)
      for (uint at = lane; at < DK; at += 32) {
        float key = from[j * channels + (args.heads_k + head_k) * DK + at];
        product += float2(key * from[i * channels + (args.heads_k + head_k) * DK + at], key * from[i * channels + head_k * DK + at]);
      }
    product = simd_sum(product);
    if (lane == 0) {
      products[i * BLOCK + j] = product.x;
      products[(BLOCK + i) * BLOCK + j] = product.y;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_at < shared_by) {
    uint head = head_k * shared_by + thread_at, key_at = KEYS_AT, read_at = READS_AT;
    device float *to = factors + block_at(group.z, span, group.x, head, args.heads_v);
    float since_start = 1.0f, rest[BLOCK];
    for (uint t = 0; t < BLOCK; ++t) {
      float2 gate = first + t < span.y ? gates[(span.x + first + t) * args.heads_v + head] : float2(1.0f, 0.0f);
      since_start *= gate.x;
      for (uint j = 0; j < t; ++j) rest[j] *= gate.x;
      rest[t] = 1.0f;
      to[t] = since_start;
      to[BETA + t] = gate.y;
      for (uint j = 0; j < t; ++j) to[key_at + j] = rest[j] * products[t * BLOCK + j];
      for (uint j = 0; j < t + 1; ++j) to[read_at + j] = rest[j] * products[(BLOCK + t) * BLOCK + j];
      key_at += t;
      read_at += t + 1;
    }
    for (uint t = 0; t < BLOCK; ++t) to[REST + t] = rest[t];
    for (uint t = READS_AT + 10; t < FACTORS; ++t) to[t] = 0.0f;
  }
}
LY_KERNEL(delta_factors_32, delta_factors<32>)
LY_KERNEL(delta_factors_64, delta_factors<64>)
LY_KERNEL(delta_factors_128, delta_factors<128>)

// delta_scan_blocked: the state through all tokens of a span; otherwise as delta_scan.
// Work     eight lanes along dim_k, two columns a lane: all products with the old state are independent, and their sums
//          cross eight lanes once a block. Tokens come asynchronously, one stage ahead. Grid: (column tiles, value heads,
//          spans), four simdgroups.
// Numerics f32. Bound by multiply-adds of one simdgroup a scheduler.
template <uint DK>
kernel void delta_scan_blocked(device const float *inputs [[buffer(0)]], device const float *factors [[buffer(1)]],
                               device const uint4 *spans [[buffer(2)]], device float *memory [[buffer(3)]],
                               device float *reads [[buffer(4)]], constant DeltaArgs &args [[buffer(5)]],
                               uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint FOURS = DK / 32;
  threadgroup float query[2 * STAGE * DK];
  threadgroup float key[2 * STAGE * DK];
  threadgroup float value[2 * STAGE * COLUMNS];
  threadgroup float factor[2 * STAGE / BLOCK * FACTORS];
  uint4 span = spans[group.z];
  uint head = group.y, head_k = head / (args.heads_v / args.heads_k), along = lane % 8;
  uint column = simdgroup_at * 8 + lane / 8 * 2, tile = group.x * COLUMNS;   // of the tile: this lane has it and the next
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device const float *from = inputs + span.x * channels;
  device float *home = memory + ((span.z * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK;
  device float *out = reads + (span.x * args.heads_v + head) * args.dim_v + tile + column + along;
  bool writes = along < 2 && tile + column + along < args.dim_v;
  float4 s[2][FOURS];
  for (uint c = 0; c < 2; ++c)
    for (uint i = 0; i < FOURS; ++i) {
      bool inside = tile + column + c < args.dim_v;
      s[c][i] = inside ? *(device const float4 *)(home + (tile + column + c) * DK + i * 32 + along * 4) : float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  uint half_at = 0;
  for (uint first = 0; first < span.y + STAGE; first += STAGE) {
    if (first < span.y) {
      for (uint i = thread_at; i < STAGE * DK / 4; i += 128) {
        uint t = i / (DK / 4), at = i % (DK / 4) * 4;
        threadgroup float *q_to = query + (half_at * STAGE + t) * DK + at;
        threadgroup float *k_to = key + (half_at * STAGE + t) * DK + at;
        if (first + t < span.y) {
          ly_copy16(q_to, from + (first + t) * channels + head_k * DK + at);
          ly_copy16(k_to, from + (first + t) * channels + (args.heads_k + head_k) * DK + at);
        } else {
          *(threadgroup float4 *)q_to = float4(0.0f, 0.0f, 0.0f, 0.0f);
          *(threadgroup float4 *)k_to = float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
      if (thread_at < STAGE * COLUMNS / 4) {
        uint t = thread_at / (COLUMNS / 4), at = thread_at % (COLUMNS / 4) * 4;
        threadgroup float *to = value + (half_at * STAGE + t) * COLUMNS + at;
        if (first + t < span.y && tile + at < args.dim_v)
          ly_copy16(to, from + (first + t) * channels + 2 * args.heads_k * DK + head * args.dim_v + tile + at);
        else *(threadgroup float4 *)to = float4(0.0f, 0.0f, 0.0f, 0.0f);
      } else if (thread_at < STAGE * COLUMNS / 4 + STAGE / BLOCK * FACTORS / 4) {
        uint i = thread_at - STAGE * COLUMNS / 4, block = first / BLOCK + i / (FACTORS / 4), at = i % (FACTORS / 4) * 4;
        threadgroup float *to = factor + half_at * (STAGE / BLOCK * FACTORS) + i * 4;
        if (block * BLOCK < span.y) ly_copy16(to, factors + block_at(group.z, span, block, head, args.heads_v) + at);
        else *(threadgroup float4 *)to = at == 0 ? float4(1.0f, 1.0f, 1.0f, 1.0f) : float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
    ly_copy_commit();
    half_at = 1 - half_at;
    if (first == 0) continue;   // the first stage is on its way; computing starts with the second
    ly_copy_wait<1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint block = 0; block < STAGE / BLOCK; ++block) {
      threadgroup const float *q_now = query + (half_at * STAGE + block * BLOCK) * DK + along * 4;
      threadgroup const float *k_now = key + (half_at * STAGE + block * BLOCK) * DK + along * 4;
      threadgroup const float *v_now = value + (half_at * STAGE + block * BLOCK) * COLUMNS + column;
      threadgroup const float *f = factor + (half_at * (STAGE / BLOCK) + block) * FACTORS;
      float4 sums[BLOCK];   // S k of both columns, then S q
      for (uint i = 0; i < BLOCK; ++i) {
        float s_k[2] = {0.0f, 0.0f}, s_q[2] = {0.0f, 0.0f};
        for (uint m = 0; m < FOURS; ++m) {
          float4 k = *(threadgroup const float4 *)(k_now + i * DK + m * 32);
          float4 q = *(threadgroup const float4 *)(q_now + i * DK + m * 32);
          for (uint c = 0; c < 2; ++c) {
            s_k[c] += s[c][m].x * k.x + s[c][m].y * k.y + s[c][m].z * k.z + s[c][m].w * k.w;
            s_q[c] += s[c][m].x * q.x + s[c][m].y * q.y + s[c][m].z * q.z + s[c][m].w * q.w;
          }
        }
        sums[i] = float4(s_k[0], s_k[1], s_q[0], s_q[1]);
      }
      for (uint i = 0; i < BLOCK; ++i) sums[i] += simd_shuffle_xor(sums[i], 1);
      for (uint i = 0; i < BLOCK; ++i) sums[i] += simd_shuffle_xor(sums[i], 2);
      for (uint i = 0; i < BLOCK; ++i) sums[i] += simd_shuffle_xor(sums[i], 4);
      float2 d[BLOCK];
      for (uint i = 0; i < BLOCK; ++i) {
        float2 seen = float2(sums[i].x, sums[i].y) * f[i], read = float2(sums[i].z, sums[i].w) * f[i];
        for (uint j = 0; j < i; ++j) {
          seen += d[j] * f[KEYS_AT + i * (i - 1) / 2 + j];
          read += d[j] * f[READS_AT + i * (i + 1) / 2 + j];
        }
        d[i] = (float2(v_now[i * COLUMNS], v_now[i * COLUMNS + 1]) - seen) * f[BETA + i];
        read += d[i] * f[READS_AT + i * (i + 1) / 2 + i];
        uint t = first - STAGE + block * BLOCK + i;
        if (writes && t < span.y) out[t * args.heads_v * args.dim_v] = along == 0 ? read.x : read.y;
      }
      float decay = f[BLOCK - 1];
      for (uint i = 0; i < BLOCK; ++i) d[i] *= f[REST + i];
      for (uint m = 0; m < FOURS; ++m) {
        s[0][m] *= decay;
        s[1][m] *= decay;
        for (uint i = 0; i < BLOCK; ++i) {
          float4 k = *(threadgroup const float4 *)(k_now + i * DK + m * 32);
          s[0][m] += k * d[i].x;
          s[1][m] += k * d[i].y;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint c = 0; c < 2; ++c)
    for (uint i = 0; i < FOURS; ++i)
      if (tile + column + c < args.dim_v) *(device float4 *)(home + (tile + column + c) * DK + i * 32 + along * 4) = s[c][i];
}
LY_KERNEL(delta_scan_blocked_32, delta_scan_blocked<32>)
LY_KERNEL(delta_scan_blocked_64, delta_scan_blocked<64>)
LY_KERNEL(delta_scan_blocked_128, delta_scan_blocked<128>)
