#include "dialect/metal.h"
#include "lib/delta.h"

constant uint BLOCK = 4;     // tokens that are solved together
constant uint STAGE = 8;     // tokens that are brought into threadgroup memory together
constant uint COLUMNS = 32;  // columns of a threadgroup

// delta_scan_blocked: the state through all tokens of a span, four tokens at a time; as delta_scan otherwise.
// Math     With A_i = a_1 .. a_i and R_ij = a_{j+1} .. a_i over the block's decays, and S the state before the block:
//          d_i = b_i (v_i - A_i S k_i - sum_{j<i} R_ij (k_j k_i) d_j)
//          o_i = A_i S q_i + sum_{j<=i} R_ij (k_j q_i) d_j;  S <- A_4 S + sum_j R_4j d_j k_j^T
//          Exact: only the order of sums differs from token by token.
// Work     eight lanes along dim_k, two columns a lane: all products with the old state are independent, and their sums
//          cross eight lanes once a block. The 16 products k_j k_i and k_j q_i are made once for all columns. Grid:
//          (column tiles, value heads, spans), four simdgroups.
// Numerics f32. Bound by multiply-adds of one threadgroup a column tile.
template <uint DK>
kernel void delta_scan_blocked(device const float *inputs [[buffer(0)]], device const float2 *gates [[buffer(1)]],
                               device const uint4 *spans [[buffer(2)]], device float *memory [[buffer(3)]],
                               device float *reads [[buffer(4)]], constant DeltaArgs &args [[buffer(5)]],
                               uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint PER_LANE = DK / 8, FOURS = PER_LANE / 4;
  threadgroup float query[2 * STAGE * DK];
  threadgroup float key[2 * STAGE * DK];
  threadgroup float value[2 * STAGE * COLUMNS];
  threadgroup float2 gate[2 * STAGE];
  threadgroup float grams[STAGE * 2 * BLOCK];   // of token i: k_j k_i, then k_j q_i, j over its block
  uint4 span = spans[group.z];
  uint head = group.y, head_k = head / (args.heads_v / args.heads_k), along = lane % 8;
  uint column = simdgroup_at * 8 + lane / 8 * 2, tile = group.x * COLUMNS;   // of the tile: this lane has it and the next
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device const float *from = inputs + span.x * channels;
  device float *home = memory + ((span.z * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK;
  float4 s[2][FOURS];
  for (uint c = 0; c < 2; ++c)
    for (uint i = 0; i < FOURS; ++i) {
      bool inside = tile + column + c < args.dim_v;
      s[c][i] = inside ? *(device const float4 *)(home + (tile + column + c) * DK + i * 32 + along * 4) : float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  // Brings tokens `first ..` into half `half_at`; tokens behind the last one neither decay nor write.
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
      }
      if (thread_at < STAGE) {
        bool inside = first + thread_at < span.y;
        gate[half_at * STAGE + thread_at] = inside ? gates[(span.x + first + thread_at) * args.heads_v + head] : float2(1.0f, 0.0f);
      }
    }
    ly_copy_commit();
    half_at = 1 - half_at;
    if (first == 0) continue;   // the first stage is on its way; computing starts with the second
    ly_copy_wait<1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);

    threadgroup const float *q_now = query + half_at * STAGE * DK;
    threadgroup const float *k_now = key + half_at * STAGE * DK;
    for (uint i = simdgroup_at * 2; i < simdgroup_at * 2 + 2; ++i) {   // two tokens a simdgroup
      float q[DK / 32], k[DK / 32];
      for (uint m = 0; m < DK / 32; ++m) {
        q[m] = q_now[i * DK + m * 32 + lane];
        k[m] = k_now[i * DK + m * 32 + lane];
      }
      for (uint j = 0; j < BLOCK; ++j) {
        float2 product = float2(0.0f, 0.0f);
        for (uint m = 0; m < DK / 32; ++m) {
          float other = k_now[(i / BLOCK * BLOCK + j) * DK + m * 32 + lane];
          product += float2(other * k[m], other * q[m]);
        }
        product = simd_sum(product);
        if (lane == 0) {
          grams[i * 2 * BLOCK + j] = product.x;
          grams[i * 2 * BLOCK + BLOCK + j] = product.y;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint block = 0; block < STAGE; block += BLOCK) {
      float s_k[BLOCK][2], s_q[BLOCK][2];
      for (uint i = 0; i < BLOCK; ++i) {
        for (uint c = 0; c < 2; ++c) {
          s_k[i][c] = 0.0f;
          s_q[i][c] = 0.0f;
        }
        for (uint m = 0; m < FOURS; ++m) {
          float4 k = *(threadgroup const float4 *)(k_now + (block + i) * DK + m * 32 + along * 4);
          float4 q = *(threadgroup const float4 *)(q_now + (block + i) * DK + m * 32 + along * 4);
          for (uint c = 0; c < 2; ++c) {
            s_k[i][c] += dot(s[c][m], k);
            s_q[i][c] += dot(s[c][m], q);
          }
        }
        float4 sums = float4(s_k[i][0], s_k[i][1], s_q[i][0], s_q[i][1]);
        sums += simd_shuffle_xor(sums, 1);
        sums += simd_shuffle_xor(sums, 2);
        sums += simd_shuffle_xor(sums, 4);
        s_k[i][0] = sums.x;
        s_k[i][1] = sums.y;
        s_q[i][0] = sums.z;
        s_q[i][1] = sums.w;
      }
      float d[BLOCK][2], since_start = 1.0f;
      float rest[BLOCK];   // R_ij of the token at hand
      for (uint i = 0; i < BLOCK; ++i) {
        float2 now = gate[half_at * STAGE + block + i];
        since_start *= now.x;
        for (uint j = 0; j < i; ++j) rest[j] *= now.x;
        rest[i] = 1.0f;
        threadgroup const float *gram = grams + (block + i) * 2 * BLOCK;
        for (uint c = 0; c < 2; ++c) {
          float seen = since_start * s_k[i][c], read = since_start * s_q[i][c];
          for (uint j = 0; j < i; ++j) {
            seen += rest[j] * gram[j] * d[j][c];
            read += rest[j] * gram[BLOCK + j] * d[j][c];
          }
          d[i][c] = (value[(half_at * STAGE + block + i) * COLUMNS + column + c] - seen) * now.y;
          read += gram[BLOCK + i] * d[i][c];
          uint t = first - STAGE + block + i;
          if (along == c && t < span.y && tile + column + c < args.dim_v)
            reads[((span.x + t) * args.heads_v + head) * args.dim_v + tile + column + c] = read;
        }
      }
      for (uint m = 0; m < FOURS; ++m) {
        s[0][m] *= since_start;
        s[1][m] *= since_start;
        for (uint j = 0; j < BLOCK; ++j) {
          float4 k = *(threadgroup const float4 *)(k_now + (block + j) * DK + m * 32 + along * 4);
          s[0][m] += k * (rest[j] * d[j][0]);
          s[1][m] += k * (rest[j] * d[j][1]);
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
