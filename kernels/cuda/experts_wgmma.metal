#include "dialect/metal.h"
#include "cuda/warpgroup.h"
#include "lib/grouped.h"
#include "lib/operand.h"

// experts_gate_up_wgmma: experts_gate_up_matmul on warpgroups, 4 bits in groups of 64.
// Math     hidden[row, choice] = silu(gate_e x[row]) * (up_e x[row])
// Layout   as experts_gate_up_matmul.
// Work     a threadgroup makes N places of one expert by 64 columns, see cuda/warpgroup.h: a lane's upper rows are gate rows,
//          its lower ones up rows of the same columns. Grid: (column tiles, place tiles).
// Numerics weights rounded to f16, f32 sums, f16 result.
template <uint N>
kernel void experts_gate_up_wgmma(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                  device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                  device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                  device const half *x [[buffer(6)]], device const uint *order [[buffer(7)]],
                                  device const uint4 *tiles [[buffer(8)]], device half *hidden [[buffer(9)]],
                                  constant GroupedArgs &args [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                                  uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                  uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<WG_THREADS, 2>();
  threadgroup ly_swizzled<N> activations[2];
  threadgroup uint assignments[N];
  threadgroup uint rows_at[N];
  uint k = args.per_token, column = group.x * (WG_ROWS / 2) + simdgroup_at * 8 + lane / 4;
  GroupedTile place = grouped_tile<N>(tiles, order, assignments, group.y, args.batch, k, args.dense, thread_at);
  if (place.count == 0) return;
  if (thread_at < N) rows_at[thread_at] = assignments[thread_at] == NO_ROW ? NO_ROW : assignments[thread_at] / (k + 1);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint here = min(column, args.width - 1);
  WgWeights w = wg_weights(gate_codes, gate_scales, gate_biases, args.gate_first + place.expert * args.gate_stride + here, up_codes,
                           up_scales, up_biases, args.up_first + place.expert * args.up_stride + here, args.cols);
  float acc[N / 2];
  for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  wg_multiply<N>(acc, activations, rows_at, x, args.cols, w, args.cols, thread_at);
  for (uint i = 0; i < N / 4; ++i) {
    uint at = i / 2 * 8 + lane % 4 * 2 + i % 2;
    float gate = acc[i / 2 * 4 + i % 2] * (1.0f / WG_GAIN), up = acc[i / 2 * 4 + 2 + i % 2] * (1.0f / WG_GAIN);
    if (at < place.count && column < args.width) {
      uint row = assignments[at] / (k + 1), choice = assignments[at] % (k + 1);
      hidden[row * args.hidden_stride + choice * args.choice_stride + column] = narrowed(gate / (1.0f + exp(-gate)) * up);
    }
  }
}
LY_KERNEL(experts_gate_up_wgmma_16, experts_gate_up_wgmma<16>)
LY_KERNEL(experts_gate_up_wgmma_32, experts_gate_up_wgmma<32>)
LY_KERNEL(experts_gate_up_wgmma_64, experts_gate_up_wgmma<64>)
LY_KERNEL(experts_gate_up_wgmma_128, experts_gate_up_wgmma<128>)

// experts_down_wgmma: experts_down_matmul on warpgroups, 4 bits in groups of 64.
// Math     part[row, choice] = down_e hidden[row, choice]
// Layout   as experts_down_matmul.
// Work     a threadgroup makes N places of one expert by 128 columns. Grid: (column tiles, place tiles).
// Numerics as above.
template <uint N>
kernel void experts_down_wgmma(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                               device const bfloat *biases [[buffer(2)]], device const half *x [[buffer(3)]],
                               device const uint *order [[buffer(4)]], device const uint4 *tiles [[buffer(5)]],
                               device half *part [[buffer(6)]], constant GroupedArgs &args [[buffer(7)]],
                               uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<WG_THREADS, 2>();
  threadgroup ly_swizzled<N> activations[2];
  threadgroup uint assignments[N];
  threadgroup uint rows_at[N];
  uint k = args.per_token, upper = group.x * WG_ROWS + simdgroup_at * 16 + lane / 4, lower = upper + 8;
  GroupedTile place = grouped_tile<N>(tiles, order, assignments, group.y, args.batch, k, args.dense, thread_at);
  if (place.count == 0) return;
  if (thread_at < N) {
    // Where the assignment's hidden values start, in units of eight.
    uint assignment = assignments[thread_at], row = assignment / (k + 1), choice = assignment % (k + 1);
    rows_at[thread_at] = assignment == NO_ROW ? NO_ROW : (row * args.hidden_stride + choice * args.choice_stride) / 8;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint first = args.gate_first + place.expert * args.gate_stride;
  WgWeights w = wg_weights(codes, scales, biases, first + min(upper, args.width - 1), codes, scales, biases,
                           first + min(lower, args.width - 1), args.cols);
  float acc[N / 2];
  for (uint i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  wg_multiply<N>(acc, activations, rows_at, x, 8, w, args.cols, thread_at);
  for (uint i = 0; i < N / 2; ++i) {
    uint at = i / 4 * 8 + lane % 4 * 2 + i % 2, column = i % 4 < 2 ? upper : lower;
    if (at < place.count && column < args.width) part[assignments[at] * args.width + column] = narrowed(acc[i] * (1.0f / WG_GAIN));
  }
}
LY_KERNEL(experts_down_wgmma_16, experts_down_wgmma<16>)
LY_KERNEL(experts_down_wgmma_32, experts_down_wgmma<32>)
LY_KERNEL(experts_down_wgmma_64, experts_down_wgmma<64>)
LY_KERNEL(experts_down_wgmma_128, experts_down_wgmma<128>)
