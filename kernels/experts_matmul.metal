#include "dialect/metal.h"
#include "lib/quantised.h"
#include "lib/operand.h"
#include "lib/tile.h"
#include "lib/grouped.h"

// experts_gate_up_matmul: gate and up projections and SwiGLU of all rows that chose an expert.
// Math     hidden[row, choice] = silu(gate_e x[row]) * (up_e x[row])
// Layout   x [rows, cols] f16; hidden f16 as args say.
// Work     a threadgroup makes BM places of one expert by 32 columns: 32 gate rows, then 32 up rows in its weight tile.
//          Grid: (column tiles, place tiles).
// Numerics weights rounded to f16, f32 sums, f16 result. Bound by multiply-adds, or weight bytes at few rows an expert.
template <uint BITS, uint BM, uint TM, uint TN>
kernel void experts_gate_up_matmul(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                   device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                   device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                   device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]],
                                   device const uint4 *tiles [[buffer(8)]], device half *hidden [[buffer(9)]],
                                   constant GroupedArgs &args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                                   uint thread_at [[thread_index_in_threadgroup]]) {
  threadgroup float activations[BM * TILE_LD];
  threadgroup half weights[TILE_COLS * TILE_LD];
  threadgroup uint assignments[BM];
  threadgroup uint rows_at[BM];
  uint k = args.per_token, first = group.x * 32;
  GroupedTile place = grouped_tile<BM>(tiles, order, assignments, group.y, args.batch, k, args.dense, thread_at);
  if (place.count == 0) return;
  if (thread_at < BM) rows_at[thread_at] = assignments[thread_at] == NO_ROW ? NO_ROW : assignments[thread_at] / (k + 1);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint tile_row = thread_at / 2, column = first + tile_row % 32;
  TileWeights w;
  w.codes = tile_row < 32 ? gate_codes : up_codes;
  w.scales = tile_row < 32 ? gate_scales : up_scales;
  w.biases = tile_row < 32 ? gate_biases : up_biases;
  w.row = column + (tile_row < 32 ? args.gate_first + place.expert * args.gate_stride : args.up_first + place.expert * args.up_stride);
  w.inside = column < args.width;
  w.cols = args.cols;
  w.group_shift = args.group_shift;
  ly_tile<TM, TN> tile;
  ly_tile_zero(tile);
  tile_multiply<BITS, BM, TM, TN>(tile, (threadgroup half *)activations, weights, rows_at, x, args.cols, w, thread_at);
  tile_gather<TM, TN>(tile, activations, thread_at);
  for (uint i = thread_at; i < BM * 32; i += 128) {
    uint at = i / 32, here = i % 32;
    if (at < place.count && first + here < args.width) {
      float gate = activations[at * TILE_LD + here], up = activations[at * TILE_LD + 32 + here];
      uint row = assignments[at] / (k + 1), choice = assignments[at] % (k + 1);
      hidden[row * args.hidden_stride + choice * args.choice_stride + first + here] = narrowed(gate / (1.0f + exp(-gate)) * up);
    }
  }
}
LY_KERNEL(experts_gate_up_matmul_q4_16, experts_gate_up_matmul<4, 16, 16, 16>)
LY_KERNEL(experts_gate_up_matmul_q4_32, experts_gate_up_matmul<4, 32, 16, 32>)
LY_KERNEL(experts_gate_up_matmul_q4_64, experts_gate_up_matmul<4, 64, 32, 32>)
LY_KERNEL(experts_gate_up_matmul_q8_16, experts_gate_up_matmul<8, 16, 16, 16>)
LY_KERNEL(experts_gate_up_matmul_q8_32, experts_gate_up_matmul<8, 32, 16, 32>)
LY_KERNEL(experts_gate_up_matmul_q8_64, experts_gate_up_matmul<8, 64, 32, 32>)
LY_KERNEL(experts_gate_up_matmul_b16_16, experts_gate_up_matmul<16, 16, 16, 16>)
LY_KERNEL(experts_gate_up_matmul_b16_32, experts_gate_up_matmul<16, 32, 16, 32>)
LY_KERNEL(experts_gate_up_matmul_b16_64, experts_gate_up_matmul<16, 64, 32, 32>)

// experts_down_matmul: down projections of all rows that chose an expert, not yet summed.
// Math     part[row, choice] = down_e hidden[row, choice]
// Layout   x is hidden, f16 as args say (cols values a choice); part [rows * (per_token + 1), width] f16.
// Work     a threadgroup makes BM places of one expert by 64 columns. Grid: (column tiles, place tiles).
// Numerics as above.
template <uint BITS, uint BM, uint TM, uint TN>
kernel void experts_down_matmul(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                                device const bfloat *biases [[buffer(2)]], device const half *x [[buffer(3)]],
                                device const uint *order [[buffer(4)]], device const uint4 *tiles [[buffer(5)]],
                                device half *part [[buffer(6)]], constant GroupedArgs &args [[buffer(7)]],
                                uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]]) {
  threadgroup float activations[BM * TILE_LD];
  threadgroup half weights[TILE_COLS * TILE_LD];
  threadgroup uint assignments[BM];
  threadgroup uint rows_at[BM];
  uint k = args.per_token, first = group.x * TILE_COLS;
  GroupedTile place = grouped_tile<BM>(tiles, order, assignments, group.y, args.batch, k, args.dense, thread_at);
  if (place.count == 0) return;
  if (thread_at < BM) {
    // Where the assignment's hidden values start, in units of eight.
    uint assignment = assignments[thread_at], row = assignment / (k + 1), choice = assignment % (k + 1);
    rows_at[thread_at] = assignment == NO_ROW ? NO_ROW : (row * args.hidden_stride + choice * args.choice_stride) / 8;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  TileWeights w;
  w.codes = codes;
  w.scales = scales;
  w.biases = biases;
  w.row = args.gate_first + place.expert * args.gate_stride + first + thread_at / 2;
  w.inside = first + thread_at / 2 < args.width;
  w.cols = args.cols;
  w.group_shift = args.group_shift;
  ly_tile<TM, TN> tile;
  ly_tile_zero(tile);
  tile_multiply<BITS, BM, TM, TN>(tile, (threadgroup half *)activations, weights, rows_at, x, 8, w, thread_at);
  tile_gather<TM, TN>(tile, activations, thread_at);
  for (uint i = thread_at; i < BM * TILE_COLS; i += 128) {
    uint at = i / TILE_COLS, here = i % TILE_COLS;
    if (at < place.count && first + here < args.width)
      part[assignments[at] * args.width + first + here] = narrowed(activations[at * TILE_LD + here]);
  }
}
LY_KERNEL(experts_down_matmul_q4_16, experts_down_matmul<4, 16, 16, 16>)
LY_KERNEL(experts_down_matmul_q4_32, experts_down_matmul<4, 32, 16, 32>)
LY_KERNEL(experts_down_matmul_q4_64, experts_down_matmul<4, 64, 32, 32>)
LY_KERNEL(experts_down_matmul_q8_16, experts_down_matmul<8, 16, 16, 16>)
LY_KERNEL(experts_down_matmul_q8_32, experts_down_matmul<8, 32, 16, 32>)
LY_KERNEL(experts_down_matmul_q8_64, experts_down_matmul<8, 64, 32, 32>)
LY_KERNEL(experts_down_matmul_b16_16, experts_down_matmul<16, 16, 16, 16>)
LY_KERNEL(experts_down_matmul_b16_32, experts_down_matmul<16, 32, 16, 32>)
LY_KERNEL(experts_down_matmul_b16_64, experts_down_matmul<16, 64, 32, 32>)

constant uint COMBINE_TURN = 3;

struct CombineArgs { uint hidden, per_token; };

// moe_combine: the weighted sum of a row's experts and the shared expert, added to the residual stream.
// Math     residual += sum_j weight_j part[row, j] + shared_gate * part[row, per_token]
// Layout   part [rows * (per_token + 1), hidden] f16.
// Work     a threadgroup a row; a thread eight neighbouring values, three choices of them on their way at a time.
// Numerics f32. Bound by bytes.
kernel void moe_combine(device const half *part [[buffer(0)]], device const uint *routes [[buffer(1)]],
                        device float *residual [[buffer(2)]], constant CombineArgs &args [[buffer(3)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint row = group.x, k = args.per_token;
  device const uint *weights = routes + row * (2 * k + 1) + k;
  uint eights = args.hidden / 8;
  device const uint4 *from = (device const uint4 *)(part + row * (k + 1) * args.hidden);
  for (uint i = thread_at; i < eights; i += simdgroups * 32) {
    device float4 *to = (device float4 *)(residual + row * args.hidden) + 2 * i;
    float4 low = to[0], high = to[1], sum_low = float4(0.0f, 0.0f, 0.0f, 0.0f), sum_high = sum_low;
    for (uint first = 0; first < k + 1; first += COMBINE_TURN) {
      uint4 eight[COMBINE_TURN];
#pragma unroll
      for (uint j = 0; j < COMBINE_TURN; ++j) eight[j] = from[min(first + j, k) * eights + i];
#pragma unroll
      for (uint j = 0; j < COMBINE_TURN; ++j) {
        if (first + j > k) continue;
        float weight = as_type<float>(weights[first + j]);
        sum_low += weight * float4(half_of(eight[j].x, 0), half_of(eight[j].x, 1), half_of(eight[j].y, 0), half_of(eight[j].y, 1));
        sum_high += weight * float4(half_of(eight[j].z, 0), half_of(eight[j].z, 1), half_of(eight[j].w, 0), half_of(eight[j].w, 1));
      }
    }
    to[0] = low + sum_low;
    to[1] = high + sum_high;
  }
}
