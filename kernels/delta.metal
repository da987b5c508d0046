#include "dialect/metal.h"
#include "lib/delta.h"
#include "lib/operand.h"

// The Gated DeltaNet mixer of one row a sequence; with more rows see delta_scan.metal.

// The channel of the convolution that is input `i` of a value head: its key head's query and key, then its own values.
template <uint DK> inline uint channel_of(uint i, uint head, uint head_k, uint heads_k, uint dim_v) {
  if (i < DK) return head_k * DK + i;
  if (i < 2 * DK) return (heads_k + head_k) * DK + i - DK;
  return 2 * heads_k * DK + head * dim_v + i - 2 * DK;
}

// Of eight lanes that share a column; each gets it.
inline float sum_of_eight(float value) {
  value += simd_shuffle_xor(value, 1);
  value += simd_shuffle_xor(value, 2);
  return value + simd_shuffle_xor(value, 4);
}

// delta_step: convolution, norms, gates, state update and gated norm of one token, one value head a threadgroup.
// Math     y = silu(conv(qkv)); q, k = l2 norm; d = beta (v - decay S k); S <- decay S + d k^T; o = S q
//          mixed = rms(o) * gain * silu(z)
// Layout   projected [rows, stride] f32: qkv | z | b | a; ring, memory see lib/delta.h; mixed [rows, mixed_stride] operands.
// Work     eight lanes share a column (a dim_v row of the memory), a simdgroup has eight columns in two halves: S is read
//          once and written once, and sums take three exchanges. o = decay (S q) + d (k q), so that both products with the
//          old S are summed together. No other launch of a pass touches this layer's state, so the first columns and the
//          past of the convolution are on their way before the launch before has ended. Grid: (value heads, rows).
// Numerics f32 throughout, one rounding at the end. Bound by state bytes.
template <uint DK>
kernel void delta_step(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                       device const float *conv [[buffer(2)]], device const float *decay_rate [[buffer(3)]],
                       device const float *dt_bias [[buffer(4)]], device const float *gain [[buffer(5)]],
                       device float *ring [[buffer(6)]], device float *memory [[buffer(7)]], device float *mixed [[buffer(8)]],
                       constant DeltaArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint QUADS = DK / 32;   // of four values: a lane's part of a column
  threadgroup float inputs[2 * DK + DIM_V_MAX];   // query, key, value
  threadgroup float reads[DIM_V_MAX];
  uint head = group.x, row = group.y, group_size = args.heads_v / args.heads_k, head_k = head / group_size;
  uint slot = rows[row].x, position = rows[row].y, width = args.conv_width;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device float *past = ring + (slot * args.layers + args.layer) * width * channels;
  device float *columns = memory + ((slot * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK + lane % 8 * 4;
  uint first = simdgroup_at * 4 + lane / 8, stride = simdgroups * 4;
  const float4 none = float4(0.0f, 0.0f, 0.0f, 0.0f);
  float4 s[2][QUADS];
  for (uint n = 0; n < 2; ++n)
    for (uint i = 0; i < QUADS; ++i)
      s[n][i] = first + n * stride < args.dim_v ? *(device const float4 *)(columns + (first + n * stride) * DK + i * 32) : none;
  // Each thread makes the same channels before the wait and behind it.
  for (uint i = thread_at; i < 2 * DK + args.dim_v; i += simdgroups * 32) {
    uint channel = channel_of<DK>(i, head, head_k, args.heads_k, args.dim_v);
    float sum = 0.0f;
    for (uint age = 1; age < width; ++age)
      sum += conv[channel * width + width - 1 - age] * past[(position + width - age) % width * channels + channel];
    inputs[i] = sum;
  }
  float rate = decay_rate[head], bias = dt_bias[head], gain_here = gain[min(thread_at, args.dim_v - 1)];
  ly_wait_previous(projected);
  device const float *from = projected + row * args.stride;
  uint gates = channels + args.heads_v * args.dim_v;
  float gate_b = from[gates + head], gate_a = from[gates + args.heads_v + head];
  float z = from[channels + head * args.dim_v + min(thread_at, args.dim_v - 1)];
  for (uint i = thread_at; i < 2 * DK + args.dim_v; i += simdgroups * 32) {
    uint channel = channel_of<DK>(i, head, head_k, args.heads_k, args.dim_v);
    float now = from[channel], sum = inputs[i] + conv[channel * width + width - 1] * now;
    inputs[i] = sum / (1.0f + exp(-sum));
    // Value heads that share a key head all read its channels; the first one stores them, in a row that nobody reads.
    if (i >= 2 * DK || head % group_size == 0) past[position % width * channels + channel] = now;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup const float *query = inputs + lane % 8 * 4, *key = query + DK;
  float q_square = 0.0f, k_square = 0.0f, k_q = 0.0f, s_k[2] = {0.0f, 0.0f}, s_q[2] = {0.0f, 0.0f};
  for (uint i = 0; i < QUADS; ++i) {
    float4 q = *(threadgroup const float4 *)(query + i * 32), k = *(threadgroup const float4 *)(key + i * 32);
    q_square += dot(q, q);
    k_square += dot(k, k);
    k_q += dot(k, q);
    for (uint n = 0; n < 2; ++n) {
      s_k[n] += dot(s[n][i], k);
      s_q[n] += dot(s[n][i], q);
    }
  }
  float q_scale = rsqrt(sum_of_eight(q_square) + 1e-6f) * rsqrt(float(DK)), k_scale = rsqrt(sum_of_eight(k_square) + 1e-6f);
  k_q = sum_of_eight(k_q) * k_scale * q_scale;
  float beta = write_strength(gate_b), decay = state_decay(gate_a, rate, bias);

  for (uint base = 0; base < args.dim_v; base += 2 * stride) {
    for (uint n = 0; n < 2; ++n) {
      uint column = base + n * stride + first;
      bool inside = column < args.dim_v;
      if (base > 0) {
        s_k[n] = 0.0f;
        s_q[n] = 0.0f;
        for (uint i = 0; i < QUADS; ++i) {
          s[n][i] = inside ? *(device const float4 *)(columns + column * DK + i * 32) : none;
          s_k[n] += dot(s[n][i], *(threadgroup const float4 *)(key + i * 32));
          s_q[n] += dot(s[n][i], *(threadgroup const float4 *)(query + i * 32));
        }
      }
      float read_k = sum_of_eight(s_k[n]) * k_scale, read_q = sum_of_eight(s_q[n]) * q_scale;
      float written = inside ? (inputs[2 * DK + column] - read_k * decay) * beta : 0.0f;
      if (inside && lane % 8 == 0) reads[column] = read_q * decay + written * k_q;
      float step = written * k_scale;
      for (uint i = 0; i < QUADS; ++i)
        if (inside)
          *(device float4 *)(columns + column * DK + i * 32) = s[n][i] * decay + *(threadgroup const float4 *)(key + i * 32) * step;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float square = 0.0f;
  for (uint i = lane; i < args.dim_v; i += 32) square += reads[i] * reads[i];
  float scale = rsqrt(simd_sum(square) / float(args.dim_v) + args.eps);
  // There are at least as many threads as values.
  if (thread_at < args.dim_v)
    store_operand(mixed, row * args.mixed_stride + head * args.dim_v + thread_at,
                  reads[thread_at] * scale * gain_here * z / (1.0f + exp(-z)), args.narrow);
}
LY_KERNEL(delta_step_32, delta_step<32>)
LY_KERNEL(delta_step_64, delta_step<64>)
LY_KERNEL(delta_step_128, delta_step<128>)
