#include "dialect/metal.h"
#include "lib/quantised.h"
#include "lib/chain.h"
#include "lib/top_k.h"

// The experts of a few rows, one row at a time; with many rows see experts_matmul.metal. Choice `per_token` of a row is
// the shared expert. hidden of a row: the choices' values one after the other.

struct ExpertArgs {
  uint cols, group_shift, per_token, experts;   // inputs; see lib/quantised.h
  uint width, shared_width;                     // outputs of an expert, of the shared one
  uint gate_stride, gate_first, up_stride, up_first;   // expert e is rows first + e * stride ..
  uint parts;                                   // see lib/chain.h
  float eps;
};

// Two dot products with one row of activations: rows `a` and `b` of one matrix each.
template <uint BITS>
inline float2 dot_rows(device const uint *codes_a, device const bfloat *scales_a, device const bfloat *biases_a, uint a,
                       device const uint *codes_b, device const bfloat *scales_b, device const bfloat *biases_b, uint b,
                       device const float *x, uint cols, uint group_shift, uint lane) {
  uint units = cols / 8, groups = units >> group_shift;
  float sum_a = 0.0f, sum_b = 0.0f;
  for (uint unit = lane; unit < units; unit += 32) {
    float value[8], code_a[8], code_b[8], total = 0.0f, dot_a = 0.0f, dot_b = 0.0f;
    unit_activations(x + unit * 8, value);
    unit_codes<BITS>(codes_a + (a * units + unit) * (BITS / 4), code_a);
    unit_codes<BITS>(codes_b + (b * units + unit) * (BITS / 4), code_b);
    for (uint i = 0; i < 8; ++i) {
      total += value[i];
      dot_a += code_a[i] * value[i];
      dot_b += code_b[i] * value[i];
    }
    if (BITS < 16) {
      uint at_a = a * groups + (unit >> group_shift), at_b = b * groups + (unit >> group_shift);
      sum_a += float(scales_a[at_a]) * dot_a + float(biases_a[at_a]) * total;
      sum_b += float(scales_b[at_b]) * dot_b + float(biases_b[at_b]) * total;
    } else {
      sum_a += dot_a;
      sum_b += dot_b;
    }
  }
  return float2(sum_a, sum_b);
}

// experts_gate_up: gate and up projections and SwiGLU of the chosen experts and the shared one.
// Math     hidden[choice] = silu(gate_e x) * (up_e x)
// Layout   x [rows, cols] f32; logits [rows, experts + 1] f32; routes see route.metal;
//          hidden [rows, per_token * width + shared_width] f32.
// Work     a simdgroup makes two values of a choice: four weight rows. With ROUTES the first simdgroup finds the row's
//          top-k from the logits, in every threadgroup, and one threadgroup of the row writes the routes: the level that
//          moe_top_k would take is saved. Grid: (column tiles, choices, rows).
// Numerics as project. Bound by weight bytes.
template <uint BITS, bool ROUTES>
kernel void experts_gate_up(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                            device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                            device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                            device const uint *shared_gate_codes [[buffer(6)]], device const bfloat *shared_gate_scales [[buffer(7)]],
                            device const bfloat *shared_gate_biases [[buffer(8)]], device const uint *shared_up_codes [[buffer(9)]],
                            device const bfloat *shared_up_scales [[buffer(10)]], device const bfloat *shared_up_biases [[buffer(11)]],
                            device const float *x [[buffer(12)]], device const float *sums [[buffer(13)]],
                            device const float *logits [[buffer(14)]], device uint *routes [[buffer(15)]],
                            device float *hidden [[buffer(16)]], constant ExpertArgs &args [[buffer(17)]],
                            uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                            uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup uint chosen[32];
  uint row = group.z, choice = group.y, k = args.per_token;
  device uint *route = routes + row * (2 * k + 1);
  uint expert = 0;
  if (choice < k) {
    if (ROUTES) {
      if (simdgroup_at == 0) {
        device const float *from = logits + row * (args.experts + 1);
        uint id;
        float weight;
        top_k(from, args.experts, k, lane, id, weight);
        chosen[lane] = id;
        if (group.x == 0 && choice == 0) {
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
  float factor = chain_scale(sums, row, args.parts, args.cols, args.eps, lane);
  uint width = choice < k ? args.width : args.shared_width, first = (group.x * simdgroups + simdgroup_at) * 2;
  device const float *from = x + row * args.cols;
  device float *to = hidden + row * (k * args.width + args.shared_width) + choice * args.width;
  for (uint column = first; column < first + 2; ++column) {
    uint inside = min(column, width - 1);
    float2 sum;
    if (choice < k) {
      sum = dot_rows<BITS>(gate_codes, gate_scales, gate_biases, args.gate_first + expert * args.gate_stride + inside,
                           up_codes, up_scales, up_biases, args.up_first + expert * args.up_stride + inside, from, args.cols,
                           args.group_shift, lane);
    } else {
      sum = dot_rows<BITS>(shared_gate_codes, shared_gate_scales, shared_gate_biases, inside, shared_up_codes, shared_up_scales,
                           shared_up_biases, inside, from, args.cols, args.group_shift, lane);
    }
    float gate = simd_sum(sum.x) * factor, up = simd_sum(sum.y) * factor;
    if (lane == 0 && column < width) to[column] = gate / (1.0f + exp(-gate)) * up;
  }
}
LY_KERNEL(experts_gate_up_q4, experts_gate_up<4, false>)
LY_KERNEL(experts_gate_up_q8, experts_gate_up<8, false>)
LY_KERNEL(experts_gate_up_b16, experts_gate_up<16, false>)
LY_KERNEL(experts_gate_up_routes_q4, experts_gate_up<4, true>)
LY_KERNEL(experts_gate_up_routes_q8, experts_gate_up<8, true>)
LY_KERNEL(experts_gate_up_routes_b16, experts_gate_up<16, true>)

struct DownArgs {
  uint group_shift, shared_group_shift, per_token, hidden, width, shared_width, stride, first;
};

// experts_down: down projections, weighted sum, shared expert and residual in one.
// Math     residual += sum_j weight_j (down_e hidden_j) + shared_gate * (down_shared hidden_shared)
// Layout   as experts_gate_up; residual [rows, hidden] f32; next, sums see lib/chain.h.
// Work     a simdgroup makes two values of a row, through all choices. Grid: (column tiles, rows).
// Numerics as project. Bound by weight bytes.
template <uint BITS, bool CHAIN>
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
  threadgroup float squares[32];
  uint row = group.y, k = args.per_token, first = (group.x * simdgroups + simdgroup_at) * 2;
  uint a = min(first, args.hidden - 1), b = min(first + 1, args.hidden - 1);
  device const uint *route = routes + row * (2 * k + 1);
  device const float *from = x + row * (k * args.width + args.shared_width);
  float2 sum = float2(0.0f, 0.0f);
  for (uint choice = 0; choice < k; ++choice) {
    uint base = args.first + route[choice] * args.stride;
    float2 one = dot_rows<BITS>(codes, scales, biases, base + a, codes, scales, biases, base + b, from + choice * args.width,
                                args.width, args.group_shift, lane);
    sum += one * as_type<float>(route[k + choice]);
  }
  float2 one = dot_rows<BITS>(shared_codes, shared_scales, shared_biases, a, shared_codes, shared_scales, shared_biases, b,
                              from + k * args.width, args.shared_width, args.shared_group_shift, lane);
  sum += one * as_type<float>(route[2 * k]);
  sum = simd_sum(sum);
  float square = 0.0f;
  if (lane < 2 && first + lane < args.hidden) {
    uint at = row * args.hidden + first + lane;
    float value = residual[at] + (lane == 0 ? sum.x : sum.y);
    residual[at] = value;
    if (CHAIN) {
      next[at] = value * gain[first + lane];
      square = value * value;
    }
  }
  if (CHAIN) {
    square = simd_sum(square);
    if (lane == 0) squares[simdgroup_at] = square;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_at == 0) {
      float total = 0.0f;
      for (uint i = 0; i < simdgroups; ++i) total += squares[i];
      sums[row * grid.x + group.x] = total;
    }
  }
}
LY_KERNEL(experts_down_q4, experts_down<4, false>)
LY_KERNEL(experts_down_q8, experts_down<8, false>)
LY_KERNEL(experts_down_b16, experts_down<16, false>)
LY_KERNEL(experts_down_chain_q4, experts_down<4, true>)
LY_KERNEL(experts_down_chain_q8, experts_down<8, true>)
LY_KERNEL(experts_down_chain_b16, experts_down<16, true>)
