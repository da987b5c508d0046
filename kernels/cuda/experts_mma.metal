#include "dialect/metal.h"
#include "cuda/span.h"
#include "lib/chain.h"
#include "lib/top_k.h"
#include "lib/experts.h"

// The experts of a few rows on tensor cores, one row at a time, 4 bits in groups of 64. Choice `per_token` of a row is the
// shared expert. hidden of a row: the choices' values one after the other.

constant uint GATE_TILES = 2;   // of a simdgroup of experts_gate_up_mma; policy.rs says the same

// experts_gate_up_mma: experts_gate_up on tensor cores.
// Math     hidden[choice] = silu(gate_e x) * (up_e x)
// Layout   as experts_gate_up, but x in halves, and hidden in halves of four bits too, see lib/halves.h.
// Work     a simdgroup makes GATE_TILES times eight values of a choice: gate rows above, up rows below, of one span, see
//          cuda/span.h. With ROUTES the first simdgroup finds the row's top-k, in every threadgroup; a threadgroup of the shared
//          expert does so too, and writes the routes. The launch behind is let
//          in when the experts are known: what it reads of the router is complete then, and its weights come after these.
//          Grid: (tiles, choices, rows).
// Numerics as project_mma. Bound by weight bytes.
template <bool ROUTES>
kernel void experts_gate_up_mma(device const uint *gate_codes [[buffer(0)]], device const bfloat *gate_scales [[buffer(1)]],
                                device const bfloat *gate_biases [[buffer(2)]], device const uint *up_codes [[buffer(3)]],
                                device const bfloat *up_scales [[buffer(4)]], device const bfloat *up_biases [[buffer(5)]],
                                device const uint *shared_gate_codes [[buffer(6)]],
                                device const bfloat *shared_gate_scales [[buffer(7)]],
                                device const bfloat *shared_gate_biases [[buffer(8)]],
                                device const uint *shared_up_codes [[buffer(9)]],
                                device const bfloat *shared_up_scales [[buffer(10)]],
                                device const bfloat *shared_up_biases [[buffer(11)]], device const float *x [[buffer(12)]],
                                device const float *sums [[buffer(13)]], device const float *logits [[buffer(14)]],
                                device uint *routes [[buffer(15)]], device float *hidden [[buffer(16)]],
                                constant ExpertArgs &args [[buffer(17)]], uint3 group [[threadgroup_position_in_grid]],
                                uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                                uint simdgroups [[simdgroups_per_threadgroup]]) {
  ly_resident<MMA_SIMDGROUPS * 32, 1>();
  threadgroup float partial[MMA_SIMDGROUPS * GATE_TILES * 16];
  threadgroup uint chosen[1];
  uint spans = args.cols / span_inputs<4>(), values = simdgroups / spans * GATE_TILES * 8;
  uint span = simdgroup_at % spans, tile = simdgroup_at / spans * GATE_TILES;
  uint choice = group.y, row = group.z, k = args.per_token;
  bool routed = choice < k;
  uint width = routed ? args.width : args.shared_width, first = group.x * values;
  uint weight_row = first + tile * 8 + lane / 4;
  SpanWeights<4> w[GATE_TILES];
  if (!routed) {
    for (uint n = 0; n < GATE_TILES; ++n) {
      uint at = min(weight_row + n * 8, width - 1);
      span_load(w[n], 0, shared_gate_codes, shared_gate_scales, shared_gate_biases, at, span, args.cols, lane);
      span_load(w[n], 1, shared_up_codes, shared_up_scales, shared_up_biases, at, span, args.cols, lane);
    }
  }
  ly_wait_previous(x, sums, logits);
  SpanInputs<4> in;
  span_inputs_load(in, x + row * args.cols, span, lane);
  ChainParts chain = chain_load(sums, row, args.parts, lane);
  device const float *row_logits = logits + row * (args.experts + 1);
  device uint *route = routes + row * (2 * k + 1);
  // The shared expert waits for nobody's choice: its first threadgroup has the time to write the routes.
  bool writes = ROUTES && choice == k && group.x == 0;
  uint id = 0;
  if (ROUTES && simdgroup_at == 0 && (routed || writes)) {
    id = top_k_ids(row_logits, args.experts, k, lane);
    if (lane == choice) chosen[0] = id;
  } else if (!ROUTES && routed && thread_at == 0) {
    chosen[0] = route[choice];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_release_next();
  if (routed) {
    uint gate_row = args.gate_first + chosen[0] * args.gate_stride, up_row = args.up_first + chosen[0] * args.up_stride;
    for (uint n = 0; n < GATE_TILES; ++n) {
      uint at = min(weight_row + n * 8, width - 1);
      span_load(w[n], 0, gate_codes, gate_scales, gate_biases, gate_row + at, span, args.cols, lane);
      span_load(w[n], 1, up_codes, up_scales, up_biases, up_row + at, span, args.cols, lane);
    }
  }
  // While the weights are on their way.
  float factor = chain_scale(chain, sums, row, args.parts, args.cols, args.eps, lane);
  if (writes && simdgroup_at == 0) {
    float weight = top_k_weight(row_logits, id, k, lane);
    if (lane < k) {
      route[lane] = id;
      route[k + lane] = as_type<uint>(weight);
    }
    if (lane == 0) route[2 * k] = as_type<uint>(1.0f / (1.0f + exp(-row_logits[args.experts])));
  }
  float2 products[GATE_TILES];
  span_products<4, GATE_TILES>(products, w, in, lane);
  partial_store<GATE_TILES>(partial, products, simdgroup_at, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_at < values && first + thread_at < width) {
    float gate = partial_add<GATE_TILES>(0.0f, partial, thread_at / 8, spans, thread_at % 8) * factor;
    float up = partial_add<GATE_TILES>(0.0f, partial, thread_at / 8, spans, thread_at % 8 + 8);
    float value = gate / (1.0f + exp(-gate)) * up * factor;
    uint at = choice * args.width + first + thread_at;
    device float *to = hidden + row * (k * args.width + args.shared_width);
    to[at] = value;
    if (args.halves > 0) halves_store<4>(to + args.halves, at, value);
  }
}
LY_KERNEL(experts_gate_up_mma, experts_gate_up_mma<false>)
LY_KERNEL(experts_gate_up_mma_routes, experts_gate_up_mma<true>)

struct DownMmaArgs {
  uint per_token, experts, hidden, width, shared_width;
  uint stride, first;   // expert e is rows first + e * stride ..
  uint halves;          // see lib/halves.h
};

constant uint DOWN_SPANS_MAX = 14;   // simdgroups of experts_down_mma

// experts_down_mma: experts_down on tensor cores.
// Math     residual += sum over choices of weight * (down_e hidden_choice) + gate * (down_shared hidden_shared)
// Layout   as experts_down, but x in halves, see lib/halves.h.
// Work     a simdgroup makes sixteen values of one span of one choice. ROUTES: it finds the experts itself from the
//          router's logits, before the launch before has ended (that one lets this one in only when the router is done), so
//          that all weights are on their way when the activations come. Grid: (tiles, rows); a simdgroup a span.
// Numerics as project_mma. Bound by weight bytes.
template <bool ROUTES, bool CHAIN>
kernel void experts_down_mma(device const uint *codes [[buffer(0)]], device const bfloat *scales [[buffer(1)]],
                             device const bfloat *biases [[buffer(2)]], device const uint *shared_codes [[buffer(3)]],
                             device const bfloat *shared_scales [[buffer(4)]], device const bfloat *shared_biases [[buffer(5)]],
                             device const float *x [[buffer(6)]], device const uint *routes [[buffer(7)]],
                             device const float *logits [[buffer(8)]], device const float *gain [[buffer(9)]],
                             device float *residual [[buffer(10)]], device float *next [[buffer(11)]],
                             device float *sums [[buffer(12)]], constant DownMmaArgs &args [[buffer(13)]],
                             uint3 group [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
                             uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[DOWN_SPANS_MAX * 16];
  threadgroup uint ids[32];
  threadgroup float weights[33];
  uint row = group.y, k = args.per_token, each = args.width / span_inputs<4>();
  uint choice = min(simdgroup_at / each, k), span = simdgroup_at - choice * each, first = group.x * 16;
  uint inputs = k * args.width + args.shared_width;
  // The shared expert needs nobody's choice, and this kernel alone writes residual.
  SpanWeights<4> w[1];
  uint weight_row = min(first + lane / 4, args.hidden - 1), weight_row8 = min(first + 8 + lane / 4, args.hidden - 1);
  if (choice == k) {
    span_load(w[0], 0, shared_codes, shared_scales, shared_biases, weight_row, span, args.shared_width, lane);
    span_load(w[0], 1, shared_codes, shared_scales, shared_biases, weight_row8, span, args.shared_width, lane);
  }
  bool mine = thread_at < 16 && first + thread_at < args.hidden;
  float gain_here = CHAIN && mine ? gain[first + thread_at] : 0.0f;
  if (ROUTES) {
    ly_settled(logits);
  } else {
    ly_wait_previous(x, routes);
  }
  device const float *row_logits = logits + row * (args.experts + 1);
  device const uint *route = routes + row * (2 * k + 1);
  if (simdgroup_at == 0) {
    uint id = ROUTES ? top_k_ids(row_logits, args.experts, k, lane) : lane < k ? route[lane] : 0u;
    ids[lane] = id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (choice < k) {
    uint expert_row = args.first + ids[choice] * args.stride;
    span_load(w[0], 0, codes, scales, biases, expert_row + weight_row, span, args.width, lane);
    span_load(w[0], 1, codes, scales, biases, expert_row + weight_row8, span, args.width, lane);
  }
  // The shared expert's simdgroups have nothing to load here.
  if (simdgroup_at == simdgroups - 1) {
    float weight = ROUTES ? top_k_weight(row_logits, ids[lane], k, lane) : lane < k ? as_type<float>(route[k + lane]) : 0.0f;
    float shared = ROUTES ? 1.0f / (1.0f + exp(-row_logits[args.experts])) : as_type<float>(route[2 * k]);
    if (lane < k) weights[lane] = weight;
    if (lane == 0) weights[k] = shared;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (ROUTES) {
    ly_wait_previous(x);
  }
  uint at = row * args.hidden + first + thread_at;
  float before = mine ? residual[at] : 0.0f;
  SpanInputs<4> in;
  span_inputs_load(in, x + row * inputs, simdgroup_at, lane);
  float2 product[1];
  span_products<4, 1>(product, w, in, lane);
  product[0] *= weights[choice];
  partial_store<1>(partial, product, simdgroup_at, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup_at == 0) {
    float value = before;
    if (mine) {
      value = partial_add<1>(value, partial, 0, simdgroups, thread_at);
      residual[at] = value;
      if (CHAIN) {
        next[at] = value * gain_here;
        halves_store_both(next, args.halves, row, args.hidden, first + thread_at, value * gain_here);
      }
    }
    float square = simd_sum(mine ? value * value : 0.0f);
    if (CHAIN && lane == 0) sums[row * grid.x + group.x] = square;
  }
}
LY_KERNEL(experts_down_mma, experts_down_mma<false, false>)
LY_KERNEL(experts_down_mma_chain, experts_down_mma<false, true>)
LY_KERNEL(experts_down_mma_routes, experts_down_mma<true, true>)
