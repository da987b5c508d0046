#include "dialect/metal.h"
#include "lib/vector.h"
#include "lib/chain.h"
#include "lib/top_k.h"
#include "lib/experts.h"

// The experts of a few rows, one row at a time; with many rows see experts_matmul.metal. Choice `per_token` of a row is
// the shared expert. hidden of a row: the choices' values one after the other.

// experts_gate_up: gate and up projections and SwiGLU of the chosen experts and the shared one.
// Math     hidden[choice] = silu(gate_e x) * (up_e x)
// Layout   x [rows, cols] f32; logits [rows, experts + 1] f32; routes see route.metal;
//          hidden [rows, per_token * width + shared_width] f32.
// Work     a simdgroup makes two values of a choice: four weight rows, see lib/vector.h. With ROUTES the first simdgroup finds the row's
//          top-k from the logits, in every threadgroup, and one threadgroup of the row writes the routes: the level that
//          moe_top_k would take is saved. Grid: (column tiles, choices, rows).
// Numerics as project. Bound by weight bytes.
template <uint BITS, uint PL, bool ROUTES>
kernel void experts_gate_up(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                            device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                            device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                            device const uint *shared_gate_codes [[buffer(6)]], device const bfloat *shared_gate_scales [[buffer(7)]],
                            device const bfloat *shared_gate_biases [[buffer(8)]], device const uint *shared_up_codes [[buffer(9)]],
                            device const bfloat *shared_up_scales [[buffer(10)]], device const bfloat *shared_up_biases [[buffer(11)]],
                            device const float *x [[buffer(12)]], device const float *sums [[buffer(13)]],
                            device const float *logits [[buffer(14)]], device uint *routes [[buffer(15)]],
                            device float *hidden [[buffer(16)]], constant ExpertArgs &args [[buffer(17)]],
                            uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float staged[STAGE_VALUES / PL * (PL + 4)];
  threadgroup uint chosen[32];
  uint row = group.z, choice = group.y, k = args.per_token;
  device uint *route = routes + row * (2 * k + 1);
  ChainParts chain = chain_load(sums, row, args.parts, lane);
  stage_rows<PL, 1, PROJECT_THREADS>(staged, x, args.cols, row, row + 1, 0, args.cols, thread_at);
  uint expert = 0;
  if (choice < k) {
    if (ROUTES) {
      if (simdgroup_at == 0) {
        device const float *from = logits + row * (args.experts + 1);
        uint id = top_k_ids(from, args.experts, k, lane);
        chosen[lane] = id;
        if (group.x == 0 && choice == 0) {
          float weight = top_k_weight(from, id, k, lane);
          if (lane < k) {
            route[lane] = id;
            route[k + lane] = as_type<uint>(weight);
          }
          if (lane == 0) route[2 * k] = as_type<uint>(1.0f / (1.0f + exp(-from[args.experts])));
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      expert = chosen[choice];
    } else {
      expert = route[choice];
    }
  }
  bool routed = choice < k;
  uint width = routed ? args.width : args.shared_width, first = (group.x * simdgroups + simdgroup_at) * 2;
  uint a = min(first, width - 1), b = min(first + 1, width - 1);
  uint gate_row = routed ? args.gate_first + expert * args.gate_stride : 0;
  uint up_row = routed ? args.up_first + expert * args.up_stride : 0;
  device const uint *gates = routed ? gate_codes : shared_gate_codes;
  device const bfloat *gates_scales = routed ? gate_scales : shared_gate_scales;
  device const bfloat *gates_biases = routed ? gate_biases : shared_gate_biases;
  device const uint *ups = routed ? up_codes : shared_up_codes;
  device const bfloat *ups_scales = routed ? up_scales : shared_up_scales;
  device const bfloat *ups_biases = routed ? up_biases : shared_up_biases;
  // Weights run one slice ahead.
  LaneWeights<BITS, PL> w[4], following[4];
  if (lane * PL < args.cols) {
    w[0] = lane_weights<BITS, PL>(gates, gates_scales, gates_biases, gate_row + a, lane * PL, args.cols, args.group_shift);
    w[1] = lane_weights<BITS, PL>(gates, gates_scales, gates_biases, gate_row + b, lane * PL, args.cols, args.group_shift);
    w[2] = lane_weights<BITS, PL>(ups, ups_scales, ups_biases, up_row + a, lane * PL, args.cols, args.group_shift);
    w[3] = lane_weights<BITS, PL>(ups, ups_scales, ups_biases, up_row + b, lane * PL, args.cols, args.group_shift);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float gate[2] = {0.0f, 0.0f}, up[2] = {0.0f, 0.0f};
  for (uint base = 0; base < args.cols; base += STAGE_VALUES) {
    if (base > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage_rows<PL, 1, PROJECT_THREADS>(staged, x, args.cols, row, row + 1, base, args.cols, thread_at);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint slice = 0; slice < STAGE_VALUES / (32 * PL); ++slice) {
      uint chunk = slice * 32 + lane, at = base + chunk * PL, next = at + 32 * PL;
      if (next < args.cols) {
        following[0] = lane_weights<BITS, PL>(gates, gates_scales, gates_biases, gate_row + a, next, args.cols, args.group_shift);
        following[1] = lane_weights<BITS, PL>(gates, gates_scales, gates_biases, gate_row + b, next, args.cols, args.group_shift);
        following[2] = lane_weights<BITS, PL>(ups, ups_scales, ups_biases, up_row + a, next, args.cols, args.group_shift);
        following[3] = lane_weights<BITS, PL>(ups, ups_scales, ups_biases, up_row + b, next, args.cols, args.group_shift);
      }
      if (at < args.cols) {
        float values[PL];
        float total = lane_values<BITS, PL>(staged + chunk * (PL + 4), values);
        gate[0] += lane_dot<BITS, PL>(w[0], values, total);
        gate[1] += lane_dot<BITS, PL>(w[1], values, total);
        up[0] += lane_dot<BITS, PL>(w[2], values, total);
        up[1] += lane_dot<BITS, PL>(w[3], values, total);
      }
      for (uint i = 0; i < 4; ++i) w[i] = following[i];
    }
  }
  float factor = chain_scale(chain, sums, row, args.parts, args.cols, args.eps, lane);
  device float *to = hidden + row * (k * args.width + args.shared_width) + choice * args.width;
  for (uint i = 0; i < 2; ++i) {
    float g = simd_sum(gate[i]) * factor, u = simd_sum(up[i]) * factor;
    if (lane == i && first + i < width) to[first + i] = g / (1.0f + exp(-g)) * u;
  }
}
LY_KERNEL(experts_gate_up_q4_32, experts_gate_up<4, 32, false>)
LY_KERNEL(experts_gate_up_q4_16, experts_gate_up<4, 16, false>)
LY_KERNEL(experts_gate_up_q4_8, experts_gate_up<4, 8, false>)
LY_KERNEL(experts_gate_up_q8_32, experts_gate_up<8, 32, false>)
LY_KERNEL(experts_gate_up_q8_16, experts_gate_up<8, 16, false>)
LY_KERNEL(experts_gate_up_q8_8, experts_gate_up<8, 8, false>)
LY_KERNEL(experts_gate_up_b16_32, experts_gate_up<16, 32, false>)
LY_KERNEL(experts_gate_up_b16_16, experts_gate_up<16, 16, false>)
LY_KERNEL(experts_gate_up_b16_8, experts_gate_up<16, 8, false>)
LY_KERNEL(experts_gate_up_routes_q4_32, experts_gate_up<4, 32, true>)
LY_KERNEL(experts_gate_up_routes_q4_16, experts_gate_up<4, 16, true>)
LY_KERNEL(experts_gate_up_routes_q4_8, experts_gate_up<4, 8, true>)
LY_KERNEL(experts_gate_up_routes_q8_32, experts_gate_up<8, 32, true>)
LY_KERNEL(experts_gate_up_routes_q8_16, experts_gate_up<8, 16, true>)
LY_KERNEL(experts_gate_up_routes_q8_8, experts_gate_up<8, 8, true>)
LY_KERNEL(experts_gate_up_routes_b16_32, experts_gate_up<16, 32, true>)
LY_KERNEL(experts_gate_up_routes_b16_16, experts_gate_up<16, 16, true>)
LY_KERNEL(experts_gate_up_routes_b16_8, experts_gate_up<16, 8, true>)

struct DownArgs {
  uint group_shift, shared_group_shift, per_token, hidden, width, shared_width, stride, first;
};

// experts_down: down projections, weighted sum, shared expert and residual in one.
// Math     residual += sum_j weight_j (down_e hidden_j) + shared_gate * (down_shared hidden_shared)
// Layout   as experts_gate_up; residual [rows, hidden] f32; next, sums see lib/chain.h.
// Work     a simdgroup makes one value of a row, through all choices. Grid: (column tiles, rows).
// Numerics as project. Bound by weight bytes.
template <uint BITS, uint PL, uint SHARED_PL, bool CHAIN>
kernel void experts_down(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                         device const bfloat *biases [[buffer(2)]], device const uint *shared_codes [[buffer(3)]],
                         device const bfloat *shared_scales [[buffer(4)]], device const bfloat *shared_biases [[buffer(5)]],
                         device const float *x [[buffer(6)]], device const uint *routes [[buffer(7)]],
                         device const float *gain [[buffer(8)]], device float *residual [[buffer(9)]],
                         device float *next [[buffer(10)]], device float *sums [[buffer(11)]],
                         constant DownArgs &args [[buffer(12)]], uint3 group [[threadgroup_position_in_grid]],
                         uint3 grid [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]]) {
  // Room for whole choices: inputs of as many as fit are staged together.
  threadgroup float staged[STAGE_VALUES / 8 * 12];
  threadgroup float squares[32];
  uint row = group.y, k = args.per_token, output_at = group.x * simdgroups + simdgroup_at, weight_row = min(output_at, args.hidden - 1);
  uint together = STAGE_VALUES / args.width;
  float sum = 0.0f;
  // The shared expert first: which weights it needs is known before the launch before has ended.
  LaneWeights<BITS, SHARED_PL> first_weights;
  if (lane * SHARED_PL < args.shared_width)
    first_weights = lane_weights<BITS, SHARED_PL>(shared_codes, shared_scales, shared_biases, weight_row, lane * SHARED_PL,
                                                  args.shared_width, args.shared_group_shift);
  ly_wait_previous(x, routes);
  device const uint *route = routes + row * (2 * k + 1);
  device const float *from = x + row * (k * args.width + args.shared_width);
  float shared_weight = as_type<float>(route[2 * k]);
  stage_rows<SHARED_PL, 1, OUTPUT_THREADS>(staged, from + k * args.width, 0, 0, 1, 0, args.shared_width, thread_at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint at = lane * SHARED_PL; at < args.shared_width; at += 32 * SHARED_PL) {
    LaneWeights<BITS, SHARED_PL> w = first_weights;
    if (at >= 32 * SHARED_PL)
      w = lane_weights<BITS, SHARED_PL>(shared_codes, shared_scales, shared_biases, weight_row, at, args.shared_width,
                                        args.shared_group_shift);
    float values[SHARED_PL];
    float total = lane_values<BITS, SHARED_PL>(staged + at / SHARED_PL * (SHARED_PL + 4), values);
    sum += shared_weight * lane_dot<BITS, SHARED_PL>(w, values, total);
  }
  for (uint first = 0; first < k; first += together) {
    uint count = min(together, k - first);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage_rows<PL, 1, OUTPUT_THREADS>(staged, from + first * args.width, 0, 0, 1, 0, count * args.width, thread_at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Two choices at a time, so that the weights of both are on their way together.
    for (uint i = 0; i < count; i += 2) {
      bool both = i + 1 < count;
      uint second = first + (both ? i + 1 : i);
      float weight_a = as_type<float>(route[k + first + i]), weight_b = both ? as_type<float>(route[k + second]) : 0.0f;
      uint row_a = args.first + route[first + i] * args.stride + weight_row, row_b = args.first + route[second] * args.stride + weight_row;
      for (uint at = lane * PL; at < args.width; at += 32 * PL) {
        LaneWeights<BITS, PL> a = lane_weights<BITS, PL>(codes, scales, biases, row_a, at, args.width, args.group_shift);
        LaneWeights<BITS, PL> b = lane_weights<BITS, PL>(codes, scales, biases, row_b, at, args.width, args.group_shift);
        float values[PL];
        float total = lane_values<BITS, PL>(staged + (i * args.width + at) / PL * (PL + 4), values);
        sum += weight_a * lane_dot<BITS, PL>(a, values, total);
        total = lane_values<BITS, PL>(staged + ((second - first) * args.width + at) / PL * (PL + 4), values);
        sum += weight_b * lane_dot<BITS, PL>(b, values, total);
      }
    }
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    float square = 0.0f;
    if (output_at < args.hidden) {
      uint at = row * args.hidden + output_at;
      float value = residual[at] + sum;
      residual[at] = value;
      if (CHAIN) next[at] = value * gain[output_at];
      square = value * value;
    }
    if (CHAIN) squares[simdgroup_at] = square;
  }
  if (CHAIN) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at == 0) {
      float total = 0.0f;
      for (uint i = 0; i < simdgroups; ++i) total += squares[i];
      sums[row * grid.x + group.x] = total;
    }
  }
}
LY_KERNEL(experts_down_q4_32_32, experts_down<4, 32, 32, false>)
LY_KERNEL(experts_down_q4_32_16, experts_down<4, 32, 16, false>)
LY_KERNEL(experts_down_q4_32_8, experts_down<4, 32, 8, false>)
LY_KERNEL(experts_down_q4_16_32, experts_down<4, 16, 32, false>)
LY_KERNEL(experts_down_q4_16_16, experts_down<4, 16, 16, false>)
LY_KERNEL(experts_down_q4_16_8, experts_down<4, 16, 8, false>)
LY_KERNEL(experts_down_q4_8_32, experts_down<4, 8, 32, false>)
LY_KERNEL(experts_down_q4_8_16, experts_down<4, 8, 16, false>)
LY_KERNEL(experts_down_q4_8_8, experts_down<4, 8, 8, false>)
LY_KERNEL(experts_down_q8_32_32, experts_down<8, 32, 32, false>)
LY_KERNEL(experts_down_q8_32_16, experts_down<8, 32, 16, false>)
LY_KERNEL(experts_down_q8_32_8, experts_down<8, 32, 8, false>)
LY_KERNEL(experts_down_q8_16_32, experts_down<8, 16, 32, false>)
LY_KERNEL(experts_down_q8_16_16, experts_down<8, 16, 16, false>)
LY_KERNEL(experts_down_q8_16_8, experts_down<8, 16, 8, false>)
LY_KERNEL(experts_down_q8_8_32, experts_down<8, 8, 32, false>)
LY_KERNEL(experts_down_q8_8_16, experts_down<8, 8, 16, false>)
LY_KERNEL(experts_down_q8_8_8, experts_down<8, 8, 8, false>)
LY_KERNEL(experts_down_b16_32_32, experts_down<16, 32, 32, false>)
LY_KERNEL(experts_down_b16_32_16, experts_down<16, 32, 16, false>)
LY_KERNEL(experts_down_b16_32_8, experts_down<16, 32, 8, false>)
LY_KERNEL(experts_down_b16_16_32, experts_down<16, 16, 32, false>)
LY_KERNEL(experts_down_b16_16_16, experts_down<16, 16, 16, false>)
LY_KERNEL(experts_down_b16_16_8, experts_down<16, 16, 8, false>)
LY_KERNEL(experts_down_b16_8_32, experts_down<16, 8, 32, false>)
LY_KERNEL(experts_down_b16_8_16, experts_down<16, 8, 16, false>)
LY_KERNEL(experts_down_b16_8_8, experts_down<16, 8, 8, false>)
LY_KERNEL(experts_down_chain_q4_32_32, experts_down<4, 32, 32, true>)
LY_KERNEL(experts_down_chain_q4_32_16, experts_down<4, 32, 16, true>)
LY_KERNEL(experts_down_chain_q4_32_8, experts_down<4, 32, 8, true>)
LY_KERNEL(experts_down_chain_q4_16_32, experts_down<4, 16, 32, true>)
LY_KERNEL(experts_down_chain_q4_16_16, experts_down<4, 16, 16, true>)
LY_KERNEL(experts_down_chain_q4_16_8, experts_down<4, 16, 8, true>)
LY_KERNEL(experts_down_chain_q4_8_32, experts_down<4, 8, 32, true>)
LY_KERNEL(experts_down_chain_q4_8_16, experts_down<4, 8, 16, true>)
LY_KERNEL(experts_down_chain_q4_8_8, experts_down<4, 8, 8, true>)
LY_KERNEL(experts_down_chain_q8_32_32, experts_down<8, 32, 32, true>)
LY_KERNEL(experts_down_chain_q8_32_16, experts_down<8, 32, 16, true>)
LY_KERNEL(experts_down_chain_q8_32_8, experts_down<8, 32, 8, true>)
LY_KERNEL(experts_down_chain_q8_16_32, experts_down<8, 16, 32, true>)
LY_KERNEL(experts_down_chain_q8_16_16, experts_down<8, 16, 16, true>)
LY_KERNEL(experts_down_chain_q8_16_8, experts_down<8, 16, 8, true>)
LY_KERNEL(experts_down_chain_q8_8_32, experts_down<8, 8, 32, true>)
LY_KERNEL(experts_down_chain_q8_8_16, experts_down<8, 8, 16, true>)
LY_KERNEL(experts_down_chain_q8_8_8, experts_down<8, 8, 8, true>)
LY_KERNEL(experts_down_chain_b16_32_32, experts_down<16, 32, 32, true>)
LY_KERNEL(experts_down_chain_b16_32_16, experts_down<16, 32, 16, true>)
LY_KERNEL(experts_down_chain_b16_32_8, experts_down<16, 32, 8, true>)
LY_KERNEL(experts_down_chain_b16_16_32, experts_down<16, 16, 32, true>)
LY_KERNEL(experts_down_chain_b16_16_16, experts_down<16, 16, 16, true>)
LY_KERNEL(experts_down_chain_b16_16_8, experts_down<16, 16, 8, true>)
LY_KERNEL(experts_down_chain_b16_8_32, experts_down<16, 8, 32, true>)
LY_KERNEL(experts_down_chain_b16_8_16, experts_down<16, 8, 16, true>)
LY_KERNEL(experts_down_chain_b16_8_8, experts_down<16, 8, 8, true>)
