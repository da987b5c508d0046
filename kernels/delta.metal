#include "dialect/metal.h"
#include "lib/delta.h"
#include "lib/operand.h"

// The Gated DeltaNet mixer of one row a sequence; with more rows see delta_scan.metal.

// delta_step: convolution, norms, gates, state update and gated norm of one token, one value head a threadgroup.
// Math     y = silu(conv(qkv)); q, k = l2 norm; d = beta (v - decay S k); S <- decay S + d k^T; o = S q
//          mixed = rms(o) * gain * silu(z)
// Layout   projected [rows, stride] f32: qkv | z | b | a; ring, memory see lib/delta.h; mixed [rows, mixed_stride] operands.
// Work     lanes stripe dim_k, a simdgroup takes four columns (dim_v rows of the memory) at a time: S is read once and
//          written once. o = decay (S q) + d (k q), so that both products with the old S are summed together.
//          Grid: (value heads, rows).
// Numerics f32 throughout, one rounding at the end. Bound by state bytes.
template <uint DK>
kernel void delta_step(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                       device const float *conv [[buffer(2)]], device const float *decay_rate [[buffer(3)]],
                       device const float *dt_bias [[buffer(4)]], device const float *gain [[buffer(5)]],
                       device float *ring [[buffer(6)]], device float *memory [[buffer(7)]], device float *mixed [[buffer(8)]],
                       constant DeltaArgs &args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint PER_LANE = DK / 32;
  threadgroup float query[DK];
  threadgroup float key[DK];
  threadgroup float value[DIM_V_MAX];
  threadgroup float reads[DIM_V_MAX];
  uint head = group.x, row = group.y, group_size = args.heads_v / args.heads_k, head_k = head / group_size;
  uint slot = rows[row].x, position = rows[row].y, width = args.conv_width;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device const float *from = projected + row * args.stride;
  device float *past = ring + (slot * args.layers + args.layer) * width * channels;
  // The first columns of the memory are on their way while the rest is made ready.
  device float *columns = memory + ((slot * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK + lane * PER_LANE;
  float s[4][PER_LANE];
  for (uint c = 0; c < 4; ++c)
    for (uint i = 0; i < PER_LANE; ++i) s[c][i] = simdgroup_at * 4 < args.dim_v ? columns[(simdgroup_at * 4 + c) * DK + i] : 0.0f;
  for (uint i = thread_at; i < 2 * DK + args.dim_v; i += simdgroups * 32) {
    uint channel = head_k * DK + i;
    if (i >= DK) channel += (args.heads_k - 1) * DK;
    if (i >= 2 * DK) channel = 2 * args.heads_k * DK + head * args.dim_v + i - 2 * DK;
    float now = from[channel], sum = conv[channel * width + width - 1] * now;
    for (uint age = 1; age < width; ++age)
      sum += conv[channel * width + width - 1 - age] * past[(position + width - age) % width * channels + channel];
    sum = sum / (1.0f + exp(-sum));
    // Value heads that share a key head all read its channels; the first one stores them, in a row that nobody reads.
    if (i >= 2 * DK || head % group_size == 0) past[position % width * channels + channel] = now;
    if (i < DK) query[i] = sum;
    else if (i < 2 * DK) key[i - DK] = sum;
    else value[i - 2 * DK] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float q[PER_LANE], k[PER_LANE], q_square = 0.0f, k_square = 0.0f, k_q = 0.0f;
  for (uint i = 0; i < PER_LANE; ++i) {
    q[i] = query[lane * PER_LANE + i];
    k[i] = key[lane * PER_LANE + i];
    q_square += q[i] * q[i];
    k_square += k[i] * k[i];
  }
  float q_scale = rsqrt(simd_sum(q_square) + 1e-6f) * rsqrt(float(DK)), k_scale = rsqrt(simd_sum(k_square) + 1e-6f);
  for (uint i = 0; i < PER_LANE; ++i) {
    q[i] *= q_scale;
    k[i] *= k_scale;
    k_q += k[i] * q[i];
  }
  k_q = simd_sum(k_q);
  uint gates = channels + args.heads_v * args.dim_v;
  float beta = write_strength(from[gates + head]);
  float decay = state_decay(from[gates + args.heads_v + head], decay_rate[head], dt_bias[head]);

  for (uint column = simdgroup_at * 4; column < args.dim_v; column += simdgroups * 4) {
    float4 s_k = float4(0.0f, 0.0f, 0.0f, 0.0f), s_q = float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint i = 0; i < PER_LANE; ++i) {
      float4 here = float4(s[0][i], s[1][i], s[2][i], s[3][i]);
      s_k += here * k[i];
      s_q += here * q[i];
    }
    s_k = simd_sum(s_k);
    s_q = simd_sum(s_q);
    float4 d = (float4(value[column], value[column + 1], value[column + 2], value[column + 3]) - s_k * decay) * beta;
    float4 read = s_q * decay + d * k_q;
    float written[4] = {d.x, d.y, d.z, d.w}, made[4] = {read.x, read.y, read.z, read.w};
    // After the last columns of its own a simdgroup reads these again: others are writing theirs.
    uint following = column + simdgroups * 4 < args.dim_v ? column + simdgroups * 4 : column;
    for (uint c = 0; c < 4; ++c) {
      for (uint i = 0; i < PER_LANE; ++i) columns[(column + c) * DK + i] = decay * s[c][i] + written[c] * k[i];
      for (uint i = 0; i < PER_LANE; ++i) s[c][i] = columns[(following + c) * DK + i];
      if (lane == c) reads[column + c] = made[c];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float square = 0.0f;
  for (uint i = lane; i < args.dim_v; i += 32) square += reads[i] * reads[i];
  float scale = rsqrt(simd_sum(square) / float(args.dim_v) + args.eps);
  for (uint i = thread_at; i < args.dim_v; i += simdgroups * 32) {
    float z = from[channels + head * args.dim_v + i];
    store_operand(mixed, row * args.mixed_stride + head * args.dim_v + i, reads[i] * scale * gain[i] * z / (1.0f + exp(-z)), args.narrow);
  }
}
LY_KERNEL(delta_step_32, delta_step<32>)
LY_KERNEL(delta_step_64, delta_step<64>)
LY_KERNEL(delta_step_128, delta_step<128>)
