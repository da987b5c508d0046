#include "dialect/metal.h"
#include "lib/delta.h"
#include "lib/halves.h"

// The Gated DeltaNet mixer of one row a sequence; with more rows see delta_scan.metal.

// The channel of the convolution that is input `i` of a tile: its key head's query and key, then values from `value0` on.
template <uint DK> inline uint channel_of(uint i, uint head_k, uint heads_k, uint value0) {
  if (i < DK) return head_k * DK + i;
  if (i < 2 * DK) return (heads_k + head_k) * DK + i - DK;
  return 2 * heads_k * DK + value0 + i - 2 * DK;
}

// Of eight lanes that share a column; each gets it.
inline float sum_of_eight(float value) {
  value += simd_shuffle_xor(value, 1);
  value += simd_shuffle_xor(value, 2);
  return value + simd_shuffle_xor(value, 4);
}

// delta_step: convolution, norms, gates, state update and gated norm of one token, TILES threadgroups a value head.
// Math     y = silu(conv(qkv)); q, k = l2 norm; d = beta (v - decay S k); S <- decay S + d k^T; o = S q
//          mixed = rms(o) * gain * silu(z); of several tiles without the factor of the norm
// Layout   projected [rows, stride] f32: qkv | z | b | a; ring, memory see lib/delta.h; mixed [rows, mixed_stride] operands;
//          head_squares [rows, heads_v, TILES] f32: sums of o^2 for lib/output.h, of several tiles only.
// Work     eight lanes share a column (a dim_v row of the memory), a simdgroup has four columns in each of HALVES:
//          S is read once and written once, and sums take three exchanges. o = decay (S q) + d (k q), so that both products
//          with the old S are summed together. No other launch of a pass touches this layer's state, so the first columns and
//          the past of the convolution are on their way before the launch before has ended. A head's tiles make its query and
//          key each for itself. Grid: (TILES, value heads, rows).
// Numerics f32 throughout, one rounding at the end. Bound by state bytes.
template <uint DK, uint TILES>
kernel void delta_step(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                       device const float *conv [[buffer(2)]], device const float *decay_rate [[buffer(3)]],
                       device const float *dt_bias [[buffer(4)]], device const float *gain [[buffer(5)]],
                       device float *ring [[buffer(6)]], device float *memory [[buffer(7)]], device float *mixed [[buffer(8)]],
                       device float *head_squares [[buffer(9)]], constant DeltaArgs &args [[buffer(10)]],
                       uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint QUADS = DK / 32;   // of four values: a lane's part of a column
  constexpr uint THREADS = TILES == 1 ? 512 : 256;   // policy.rs says the same
  constexpr uint HALVES = TILES == 1 ? 2 : 1, STRIDE = THREADS / 8;
  constexpr uint ROUNDS = (2 * DK + DIM_V_MAX / TILES + THREADS - 1) / THREADS;
  threadgroup float inputs[2 * DK + DIM_V_MAX / TILES];   // query, key, values
  threadgroup float reads[DIM_V_MAX / TILES];
  threadgroup float gains[DIM_V_MAX / TILES];
  threadgroup float rates[2];
  uint head = group.y, row = group.z, group_size = args.heads_v / args.heads_k, head_k = head / group_size;
  uint columns = args.dim_v / TILES, value0 = head * args.dim_v + group.x * columns;   // of all heads' values, this tile's first
  uint slot = rows[row].x, position = rows[row].y, width = args.conv_width;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device float *past = ring + (slot * args.layers + args.layer) * width * channels;
  device float *state = memory + ((slot * args.layers + args.layer) * args.heads_v * args.dim_v + value0) * DK + lane % 8 * 4;
  uint first = simdgroup_at * 4 + lane / 8;
  const float4 none = float4(0.0f, 0.0f, 0.0f, 0.0f);
  float4 s[HALVES][QUADS];
  for (uint n = 0; n < HALVES; ++n)
    for (uint i = 0; i < QUADS; ++i)
      s[n][i] = first + n * STRIDE < columns ? *(device const float4 *)(state + (first + n * STRIDE) * DK + i * 32) : none;
  // Each thread makes the same channels before the wait and behind it. Tiles and value heads that share a key head all read
  // its channels; the first one stores them, in a row that nobody reads.
  uint channel[ROUNDS];
  bool stores_keys = head % group_size == 0 && group.x == 0;
  device float *newest = past + position % width * channels;
  for (uint n = 0; n < ROUNDS; ++n) {
    uint i = n * THREADS + thread_at;
    channel[n] = channel_of<DK>(min(i, 2 * DK + columns - 1), head_k, args.heads_k, value0);
    if (i < 2 * DK + columns) {
      float sum = 0.0f;
      for (uint age = 1; age < width; ++age)
        sum += conv[channel[n] * width + width - 1 - age] * past[(position + width - age) % width * channels + channel[n]];
      inputs[i] = sum;
    }
  }
  // In threadgroup memory weights cannot sink behind the wait.
  if (thread_at < columns) gains[thread_at] = gain[group.x * columns + thread_at];
  if (thread_at < 2) rates[thread_at] = thread_at == 0 ? decay_rate[head] : dt_bias[head];
  ly_wait_previous(projected);
  device const float *from = projected + row * args.stride;
  uint gates = channels + args.heads_v * args.dim_v;
  float gate_b = from[gates + head], gate_a = from[gates + args.heads_v + head], z = from[channels + value0 + min(thread_at, columns - 1)];
  float now[ROUNDS];
  for (uint n = 0; n < ROUNDS; ++n) now[n] = from[channel[n]];
  for (uint n = 0; n < ROUNDS; ++n) {
    uint i = n * THREADS + thread_at;
    if (i < 2 * DK + columns) {
      float sum = inputs[i] + conv[channel[n] * width + width - 1] * now[n];
      inputs[i] = sum / (1.0f + exp(-sum));
      if (i >= 2 * DK || stores_keys) newest[channel[n]] = now[n];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup const float *query = inputs + lane % 8 * 4, *key = query + DK;
  float q_square = 0.0f, k_square = 0.0f, k_q = 0.0f, s_k[HALVES], s_q[HALVES];
  for (uint n = 0; n < HALVES; ++n) {
    s_k[n] = 0.0f;
    s_q[n] = 0.0f;
  }
  for (uint i = 0; i < QUADS; ++i) {
    float4 q = *(threadgroup const float4 *)(query + i * 32), k = *(threadgroup const float4 *)(key + i * 32);
    q_square += dot(q, q);
    k_square += dot(k, k);
    k_q += dot(k, q);
    for (uint n = 0; n < HALVES; ++n) {
      s_k[n] += dot(s[n][i], k);
      s_q[n] += dot(s[n][i], q);
    }
  }
  float q_scale = rsqrt(sum_of_eight(q_square) + 1e-6f) * rsqrt(float(DK)), k_scale = rsqrt(sum_of_eight(k_square) + 1e-6f);
  k_q = sum_of_eight(k_q) * k_scale * q_scale;
  float beta = write_strength(gate_b), decay = state_decay(gate_a, rates[0], rates[1]);

  for (uint base = 0; base < columns; base += HALVES * STRIDE) {
    for (uint n = 0; n < HALVES; ++n) {
      uint column = base + n * STRIDE + first;
      bool inside = column < columns;
      if (base > 0) {
        s_k[n] = 0.0f;
        s_q[n] = 0.0f;
        for (uint i = 0; i < QUADS; ++i) {
          s[n][i] = inside ? *(device const float4 *)(state + column * DK + i * 32) : none;
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
          *(device float4 *)(state + column * DK + i * 32) = s[n][i] * decay + *(threadgroup const float4 *)(key + i * 32) * step;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float square = 0.0f;
  for (uint i = lane; i < columns; i += 32) square += reads[i] * reads[i];
  square = simd_sum(square);
  if (TILES > 1 && thread_at == 0) head_squares[(row * args.heads_v + head) * TILES + group.x] = square;
  float scale = TILES > 1 ? 1.0f : rsqrt(square / float(args.dim_v) + args.eps);
  // There are at least as many threads as values.
  if (thread_at < columns) {
    float value = reads[thread_at] * scale * gains[thread_at] * z / (1.0f + exp(-z));
    store_operand(mixed, row * args.mixed_stride + value0 + thread_at, value, args.narrow);
    if (args.halves > 0) halves_store<4>(mixed + args.halves + row * args.heads_v * args.dim_v, value0 + thread_at, value);
  }
}
LY_KERNEL(delta_step_32, delta_step<32, 1>)
LY_KERNEL(delta_step_64, delta_step<64, 1>)
LY_KERNEL(delta_step_128, delta_step<128, 1>)
LY_KERNEL(delta_step_tiled_32, delta_step<32, 4>)
LY_KERNEL(delta_step_tiled_64, delta_step<64, 4>)
LY_KERNEL(delta_step_tiled_128, delta_step<128, 4>)
