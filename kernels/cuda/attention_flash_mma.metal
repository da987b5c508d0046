#include "dialect/metal.h"
#include "lib/operand.h"
#include "lib/pass.h"
#include "lib/flash.h"

constant uint FLASH_ROWS = 128;      // query rows of a tile: tokens times the query heads of one key head
constant uint FLASH_THREADS = 256;
constant uint KEYS = 32;             // positions a step

// Brings positions t0 .. t0 + KEYS of keys or values; zeros behind the context, where nothing has ever been written.
template <uint D>
inline void positions_copy(threadgroup half *to, device const half *from, uint t0, uint context, uint thread_at) {
  for (uint i = thread_at; i < KEYS * D / 8; i += FLASH_THREADS) {
    uint t = i / (D / 8), at = i % (D / 8) * 8;
    threadgroup half *place = to + t * (D + 8) + at;
    if (t0 + t < context) ly_copy16(place, from + t * D + at);
    else *(threadgroup uint4 *)place = uint4(0u, 0u, 0u, 0u);
  }
  ly_copy_commit();
}

// Two neighbouring values of a query row as halfs; zeros for a row that is not there.
inline uint query_pair(device const float *row, uint at, bool used, float scale) {
  float2 two = used ? *(device const float2 *)(row + at) : float2(0.0f, 0.0f);
  return narrowed_pair(two.x * scale, two.y * scale);
}

// attn_flash_mma: attn_flash with everything but keys and values in registers.
// Math     mixed = softmax(q k / sqrt(D)) v * sigmoid(gate)
// Layout   as attn_flash, with tiles of FLASH_ROWS query rows.
// Work     a simdgroup has sixteen query rows of all query heads of one key head: queries, scores and the result stay in its
//          registers; scores become the operand of the second product where they are. Keys of the next step come while
//          values are multiplied, values while keys are. The longest tiles go first. Grid: (tiles, heads_kv).
// Numerics f16 operands (queries and weights rounded), f32 sums and softmax. Bound by multiply-adds.
template <uint D>
kernel void attn_flash_mma(device const float *projected [[buffer(0)]], device const uint4 *tiles [[buffer(1)]],
                           device const uint *pages [[buffer(2)]], device const half *kv [[buffer(3)]],
                           device half *mixed [[buffer(4)]], constant FlashArgs &args [[buffer(5)]],
                           uint3 group [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
                           uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<FLASH_THREADS, 1>();
  threadgroup half keys[KEYS * (D + 8)];
  threadgroup half values[KEYS * (D + 8)];
  uint4 tile = tiles[grid.x - 1 - group.x];
  uint heads = args.heads_q / args.heads_kv, head_kv = group.y, used = tile.y * heads, t = lane % 4;
  uint upper = simdgroup_at * 16 + lane / 4, lower = upper + 8;
  uint last_upper = tile.z + upper / heads, last_lower = tile.z + lower / heads;   // the last positions that they may see
  uint upper_at = (tile.x + upper / heads) * args.stride + (head_kv * heads + upper % heads) * 2 * D;
  uint lower_at = (tile.x + lower / heads) * args.stride + (head_kv * heads + lower % heads) * 2 * D;
  uint q[D / 16][4];
#pragma unroll
  for (uint i = 0; i < D / 16; ++i)
    for (uint part = 0; part < 2; ++part) {
      q[i][2 * part] = query_pair(projected + upper_at, i * 16 + part * 8 + 2 * t, upper < used, args.scale);
      q[i][2 * part + 1] = query_pair(projected + lower_at, i * 16 + part * 8 + 2 * t, lower < used, args.scale);
    }
  float out[D / 8][4], top[2] = {-INFINITY, -INFINITY}, sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (uint i = 0; i < D / 8; ++i)
    for (uint c = 0; c < 4; ++c) out[i][c] = 0.0f;
  device const uint *table = pages + tile.w;
  uint context = tile.z + tile.y;
  device const half *from = kv + page_keys(table[0], args.layer, args.layers, head_kv, args.heads_kv, D);
  positions_copy<D>(keys, from, 0, context, thread_at);
  positions_copy<D>(values, from + PAGE_TOKENS * D, 0, context, thread_at);
  threadgroup const half *key_rows = keys + (lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8;
  threadgroup const half *value_rows = values + lane % 16 * (D + 8) + lane / 16 * 8;
  for (uint t0 = 0; t0 < context; t0 += KEYS) {
    ly_copy_wait<1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float s[KEYS / 8][4];
    for (uint n = 0; n < KEYS / 8; ++n)
      for (uint c = 0; c < 4; ++c) s[n][c] = 0.0f;
#pragma unroll
    for (uint i = 0; i < D / 16; ++i)
      for (uint n = 0; n < KEYS / 16; ++n) {
        uint b[4];
        ly_load_matrices(b, key_rows + n * 16 * (D + 8) + i * 16);
        ly_mma(s[2 * n], q[i][0], q[i][1], q[i][2], q[i][3], b[0], b[1]);
        ly_mma(s[2 * n + 1], q[i][0], q[i][1], q[i][2], q[i][3], b[2], b[3]);
      }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint next = t0 + KEYS;
    if (next < context) {
      from = kv + page_keys(table[next / PAGE_TOKENS], args.layer, args.layers, head_kv, args.heads_kv, D) + next % PAGE_TOKENS * D;
      positions_copy<D>(keys, from, next, context, thread_at);
    } else {
      ly_copy_commit();
    }
    if (t0 + KEYS > tile.z)
      for (uint n = 0; n < KEYS / 8; ++n)
        for (uint c = 0; c < 4; ++c)
          if (t0 + n * 8 + 2 * t + c % 2 > (c < 2 ? last_upper : last_lower)) s[n][c] = -INFINITY;
    float share[2];
#pragma unroll
    for (uint h = 0; h < 2; ++h) {
      float peak = top[h];
      for (uint n = 0; n < KEYS / 8; ++n) peak = max(peak, max(s[n][2 * h], s[n][2 * h + 1]));
      peak = max(peak, simd_shuffle_xor(peak, 1));
      peak = max(peak, simd_shuffle_xor(peak, 2));
      share[h] = exp(top[h] - peak);
      top[h] = peak;
      float sum = 0.0f;
      for (uint n = 0; n < KEYS / 8; ++n)
        for (uint c = 2 * h; c < 2 * h + 2; ++c) {
          s[n][c] = exp(s[n][c] - peak);
          sum += s[n][c];
        }
      sums[h] = sums[h] * share[h] + sum;
    }
#pragma unroll
    for (uint i = 0; i < D / 8; ++i)
      for (uint c = 0; c < 4; ++c) out[i][c] *= share[c / 2];
    ly_copy_wait<1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = 0; n < KEYS / 16; ++n) {
      uint a0 = ly_pack2(s[2 * n][0], s[2 * n][1]), a1 = ly_pack2(s[2 * n][2], s[2 * n][3]);
      uint a2 = ly_pack2(s[2 * n + 1][0], s[2 * n + 1][1]), a3 = ly_pack2(s[2 * n + 1][2], s[2 * n + 1][3]);
#pragma unroll
      for (uint i = 0; i < D / 16; ++i) {
        uint b[4];
        ly_load_transposed(b, value_rows + n * 16 * (D + 8) + i * 16);
        ly_mma(out[2 * i], a0, a1, a2, a3, b[0], b[1]);
        ly_mma(out[2 * i + 1], a0, a1, a2, a3, b[2], b[3]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (next < context) positions_copy<D>(values, from + PAGE_TOKENS * D, next, context, thread_at);
    else ly_copy_commit();
  }
#pragma unroll
  for (uint h = 0; h < 2; ++h) {
    float sum = sums[h];
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    uint m = h == 0 ? upper : lower;
    device const float *gates = projected + (h == 0 ? upper_at : lower_at) + D;
    device half *to = mixed + (tile.x + m / heads) * args.mixed_stride + (head_kv * heads + m % heads) * D;
    if (m < used)
#pragma unroll
      for (uint i = 0; i < D / 8; ++i) {
        float2 gate = *(device const float2 *)(gates + i * 8 + 2 * t);
        float first = out[i][2 * h] / sum / (1.0f + exp(-gate.x)), second = out[i][2 * h + 1] / sum / (1.0f + exp(-gate.y));
        *(device uint *)(to + i * 8 + 2 * t) = narrowed_pair(first, second);
      }
  }
}
LY_KERNEL(attn_flash_mma_64, attn_flash_mma<64>)
LY_KERNEL(attn_flash_mma_128, attn_flash_mma<128>)
LY_KERNEL(attn_flash_mma_256, attn_flash_mma<256>)
