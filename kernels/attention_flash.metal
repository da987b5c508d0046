#include "dialect/metal.h"
#include "lib/operand.h"
#include "lib/pass.h"
#include "lib/flash.h"

constant uint M = 32;          // query rows of a tile: tokens times the query heads of one key head
constant uint KEYS = 64;       // positions a step
constant uint CHUNK = 64;      // of head_dim, of the keys that are in threadgroup memory at a time
constant uint CHUNK_LD = 72;

// attn_flash: causal attention of many rows, with the gate.
// Math     mixed = softmax(q k / sqrt(D)) v * sigmoid(gate)
// Layout   as attn_prepare left them; tiles [..] uint4: x = first row, y = tokens, z = position of the first, w = its page
//          table; mixed [rows, mixed_stride] f16.
// Work     a threadgroup takes up to M / (heads_q / heads_kv) tokens and ALL query heads of one key head, so that its keys
//          and values are read once for them. Eight simdgroups: 2 x 16 query rows by 4 groups of columns. Scores of 64
//          positions from chunks of head_dim; then values, 16 positions at a time, into accumulators that never leave the
//          simdgroup. Grid: (tiles, heads_kv).
// Numerics f16 operands (queries and weights rounded), f32 sums and softmax. Bound by multiply-adds.
template <uint D, uint CHUNKS, uint VALUE_LD, uint TN>
kernel void attn_flash(device const float *projected [[buffer(0)]], device const uint4 *tiles [[buffer(1)]],
                       device const uint *pages [[buffer(2)]], device const half *kv [[buffer(3)]],
                       device half *mixed [[buffer(4)]], constant FlashArgs &args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  threadgroup half queries[M * VALUE_LD];
  threadgroup float room[M * CHUNK_LD];          // keys of one chunk, or scores, or values: never two of them
  threadgroup half weights[M * CHUNK_LD];
  threadgroup float total[M];
  threadgroup float shrink[M];
  threadgroup half *rows = (threadgroup half *)room;
  uint4 tile = tiles[group.x];
  uint heads = args.heads_q / args.heads_kv, head_kv = group.y, used = tile.y * heads;
  uint row_at = simdgroup_at / 4 * 16, column_group = simdgroup_at % 4;
  device const uint *table = pages + tile.w;
  for (uint i = thread_at; i < M * D; i += 256) {
    uint m = i / D, at = i % D;
    float value = 0.0f;
    if (m < used) value = projected[(tile.x + m / heads) * args.stride + (head_kv * heads + m % heads) * 2 * D + at] * args.scale;
    queries[m * VALUE_LD + at] = narrowed(value);
  }
  float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};   // of this simdgroup's rows
  ly_tile<16, TN> out;
  ly_tile_zero(out);
  uint context = tile.z + tile.y;
  for (uint t0 = 0; t0 < context; t0 += KEYS) {
    ly_tile<16, 16> scores;
    ly_tile_zero(scores);
    uint page = table[t0 / PAGE_TOKENS];
    device const half *keys =
        kv + page_keys(page, args.layer, args.layers, head_kv, args.heads_kv, D) + t0 % PAGE_TOKENS * D;
    device const half *values = keys + PAGE_TOKENS * D;
    for (uint chunk = 0; chunk < CHUNKS; ++chunk) {
      // The page holds all 64 positions; those behind the context have never been written, and are set to zero.
      for (uint i = thread_at; i < KEYS * (D / CHUNKS) / 8; i += 256) {
        uint t = i / (D / CHUNKS / 8), at = i % (D / CHUNKS / 8) * 8;
        threadgroup half *to = rows + t * CHUNK_LD + at;
        if (t0 + t < context) ly_copy16(to, keys + t * D + chunk * CHUNK + at);
        else *(threadgroup uint4 *)to = uint4(0u, 0u, 0u, 0u);
      }
      ly_copy_commit();
      ly_copy_wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      ly_tile_mma<D / CHUNKS>(scores, (threadgroup const half *)queries + row_at * VALUE_LD + chunk * CHUNK, VALUE_LD,
                              (threadgroup const half *)rows + column_group * 16 * CHUNK_LD, CHUNK_LD);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    ly_tile_store(scores, room + row_at * CHUNK_LD + column_group * 16, CHUNK_LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Softmax so far: four rows a simdgroup, two positions a lane.
    for (uint i = 0; i < 4; ++i) {
      uint m = simdgroup_at * 4 + i, last = tile.z + m / heads;   // the last position that this row may see
      float a = t0 + lane <= last ? room[m * CHUNK_LD + lane] : -INFINITY;
      float b = t0 + 32 + lane <= last ? room[m * CHUNK_LD + 32 + lane] : -INFINITY;
      float before = top[i], peak = max(before, simd_max(max(a, b)));
      float share = peak == -INFINITY ? 1.0f : exp(before - peak);
      float p = peak == -INFINITY ? 0.0f : exp(a - peak), r = peak == -INFINITY ? 0.0f : exp(b - peak);
      float sum = simd_sum(p + r);
      weights[m * CHUNK_LD + lane] = half(p);
      weights[m * CHUNK_LD + 32 + lane] = half(r);
      top[i] = peak;
      sums[i] = sums[i] * share + sum;
      if (lane == 0) shrink[m] = share;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ly_tile_scale_rows(out, (threadgroup const float *)shrink + row_at);
    for (uint part = 0; part < KEYS && t0 + part < context; part += 16) {
      for (uint i = thread_at; i < 16 * D / 8; i += 256) {
        uint t = i / (D / 8), at = i % (D / 8) * 8;
        threadgroup half *to = rows + t * VALUE_LD + at;
        if (t0 + part + t < context) ly_copy16(to, values + (part + t) * D + at);
        else *(threadgroup uint4 *)to = uint4(0u, 0u, 0u, 0u);
      }
      ly_copy_commit();
      ly_copy_wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      ly_tile_mma_kn<16>(out, (threadgroup const half *)weights + row_at * CHUNK_LD + part, CHUNK_LD,
                         (threadgroup const half *)rows + column_group * TN, VALUE_LD);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  if (lane == 0)
    for (uint i = 0; i < 4; ++i) total[simdgroup_at * 4 + i] = sums[i];
  // 64 columns at a time through `room`: a column group's share of them.
  for (uint g = 0; g < 4; ++g) {
    if (column_group == g) ly_tile_store(out, room + row_at * CHUNK_LD, CHUNK_LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_at; i < M * TN; i += 256) {
      uint m = i / TN, at = i % TN, head = head_kv * heads + m % heads;
      if (m < used) {
        uint row = tile.x + m / heads;
        float gate = projected[row * args.stride + head * 2 * D + D + g * TN + at];
        mixed[row * args.mixed_stride + head * D + g * TN + at] = narrowed(room[m * CHUNK_LD + at] / total[m] / (1.0f + exp(-gate)));
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
LY_KERNEL(attn_flash_32, attn_flash<32, 1, 40, 8>)
LY_KERNEL(attn_flash_64, attn_flash<64, 1, 72, 16>)
LY_KERNEL(attn_flash_128, attn_flash<128, 2, 136, 32>)
LY_KERNEL(attn_flash_256, attn_flash<256, 4, 264, 64>)
