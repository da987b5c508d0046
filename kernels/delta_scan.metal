#include "dialect/metal.h"
#include "lib/delta.h"
#include "lib/operand.h"

// The Gated DeltaNet mixer of spans of many rows: convolution and gates of all rows at once, then the scan over each
// span's tokens, then the gated norm. `inputs` [rows, channels] f32 is what the scan reads, `gates` [rows, heads_v] its decay
// and beta. For delta_scan_mma queries and keys are split: a head's values as halfs, then what those miss, in the same place.

// delta_conv: convolution, silu, l2 norm of queries and keys, gates.
// Math     y_t = silu(sum_j w_j x_{t-j}); q *= rsqrt(q q + 1e-6) / sqrt(dim_k); k *= rsqrt(k k + 1e-6)
// Layout   projected [rows, stride] f32: qkv | z | b | a; ring see lib/delta.h.
// Work     a simdgroup a head of a row; heads: queries, keys, values. Grid: (rows, heads / simdgroups).
// Numerics f32. Bound by bytes: 8 a channel.
template <bool SPLIT>
kernel void delta_conv(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                       device const float *conv [[buffer(2)]], device const float *decay_rate [[buffer(3)]],
                       device const float *dt_bias [[buffer(4)]], device const float *ring [[buffer(5)]],
                       device float *inputs [[buffer(6)]], device float2 *gates [[buffer(7)]],
                       constant DeltaArgs &args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint heads = 2 * args.heads_k + args.heads_v, row = group.x, head = min(group.y * simdgroups + simdgroup_at, heads - 1);
  uint width = args.conv_width, channels = 2 * args.heads_k * args.dim_k + args.heads_v * args.dim_v;
  bool is_value = head >= 2 * args.heads_k, is_query = head < args.heads_k;
  uint size = is_value ? args.dim_v : args.dim_k;
  uint first = is_value ? 2 * args.heads_k * args.dim_k + (head - 2 * args.heads_k) * args.dim_v : head * args.dim_k;
  uint position = rows[row].y, age_in_pass = row - rows[row].w;
  device const float *from = projected + row * args.stride + first;
  device const float *past = ring + (rows[row].x * args.layers + args.layer) * width * channels + first;
  float value[DIM_V_MAX / 32], square = 0.0f;
  for (uint i = 0; i * 32 + lane < size; ++i) {
    uint at = i * 32 + lane;
    float sum = 0.0f;
    for (uint age = 0; age < width; ++age) {
      // A pointer moves back: an index below zero would wrap.
      float raw = age <= age_in_pass ? (from - age * args.stride)[at] : past[(position + width - age) % width * channels + at];
      sum += conv[(first + at) * width + width - 1 - age] * raw;
    }
    value[i] = sum / (1.0f + exp(-sum));
    square += value[i] * value[i];
  }
  float scale = rsqrt(simd_sum(square) + 1e-6f);
  if (is_query) scale *= rsqrt(float(args.dim_k));
  if (is_value) scale = 1.0f;
  if (group.y * simdgroups + simdgroup_at < heads) {
    device float *to = inputs + row * channels + first;
    for (uint i = 0; i * 32 + lane < size; ++i) {
      uint at = i * 32 + lane;
      float x = value[i] * scale;
      if (SPLIT && !is_value) {
        ((device half *)to)[at] = half(x);
        ((device half *)to)[size + at] = half(x - float(half(x)));
      } else {
        to[at] = x;
      }
    }
    if (is_value && lane == 0) {
      uint h = head - 2 * args.heads_k;
      device const float *b = projected + row * args.stride + channels + args.heads_v * args.dim_v;
      gates[row * args.heads_v + h] = float2(state_decay(b[args.heads_v + h], decay_rate[h], dt_bias[h]), write_strength(b[h]));
    }
  }
}

LY_KERNEL(delta_conv, delta_conv<false>)
LY_KERNEL(delta_conv_split, delta_conv<true>)

constant uint TAPS = 4;
constant uint TURN = 4;         // rows that a lane makes together: they share taps and, but for three, the rows before them
constant uint CONV_ROWS = 8;    // of a simdgroup; steps/delta.rs says the same

// delta_conv_taps: the same of convolutions over four rows.
// Work     a lane has four neighbouring channels of four rows at a time: seven loads of 16 bytes, of which three are in the first
//          level, since the simdgroup before just loaded them. Rows that do not belong to one span go one by one. A value head's
//          gates have a lane each. Grid: (heads, rows / CONV_ROWS / simdgroups).
// Numerics f32. Bound by bytes: 8 a channel.
template <bool SPLIT>
kernel void delta_conv_taps(device const float *projected [[buffer(0)]], device const uint4 *rows [[buffer(1)]],
                            device const float *conv [[buffer(2)]], device const float *decay_rate [[buffer(3)]],
                            device const float *dt_bias [[buffer(4)]], device const float *ring [[buffer(5)]],
                            device float *inputs [[buffer(6)]], device float2 *gates [[buffer(7)]],
                            constant DeltaArgs &args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                            uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint head = group.x, keys = args.heads_k * args.dim_k, channels = 2 * keys + args.heads_v * args.dim_v;
  bool is_value = head >= 2 * args.heads_k;
  uint size = is_value ? args.dim_v : args.dim_k;
  uint first = is_value ? 2 * keys + (head - 2 * args.heads_k) * args.dim_v : head * args.dim_k;
  uint row0 = (group.y * simdgroups + simdgroup_at) * CONV_ROWS, end = min(row0 + CONV_ROWS, args.row_count);
  float whole = head < args.heads_k ? rsqrt(float(args.dim_k)) : 1.0f;
  // Of 256 values a lane has two fours; they have no norm, which would need them together.
  for (uint at = lane * 4; at - lane * 4 < size; at += 128) {
    bool inside = at < size;
    uint channel = first + min(at, size - 4);
    float4 taps[4];
#pragma unroll
    for (uint c = 0; c < 4; ++c) taps[c] = ((device const float4 *)conv)[channel + c];
    for (uint row = row0; row < end;) {
      uint4 place = rows[row];
      uint count = row + TURN <= end && rows[min(row + TURN, end) - 1].w == place.w ? TURN : 1u;
      device const float *from = projected + row * args.stride + channel;
      device const float *past = ring + (place.x * args.layers + args.layer) * TAPS * channels + channel;
      // Rows row - 3 .. row + 3. A pointer moves back: an index below zero would wrap.
      float4 raw[TAPS - 1 + TURN], value[TURN];
#pragma unroll
      for (uint age = 1; age < TAPS; ++age)
        raw[TAPS - 1 - age] = *(device const float4 *)(age <= row - place.w ? from - age * args.stride
                                                                            : past + (place.y + TAPS - age) % TAPS * channels);
#pragma unroll
      for (uint i = 0; i < TURN; ++i) raw[TAPS - 1 + i] = *(device const float4 *)(from + min(i, count - 1) * args.stride);
#pragma unroll
      for (uint i = 0; i < TURN; ++i)
        for (uint c = 0; c < 4; ++c) {
          float y = taps[c].w * raw[i + 3][c] + taps[c].z * raw[i + 2][c] + taps[c].y * raw[i + 1][c] + taps[c].x * raw[i][c];
          value[i][c] = silu(y);
        }
      if (!is_value) {
        float4 squares;
        for (uint i = 0; i < TURN; ++i) squares[i] = inside ? dot(value[i], value[i]) : 0.0f;
        squares = simd_sum(squares);
        for (uint i = 0; i < TURN; ++i) value[i] *= rsqrt(squares[i] + 1e-6f) * whole;
      }
      device float *to = inputs + row * channels + first;
#pragma unroll
      for (uint i = 0; i < TURN; ++i)
        if (inside && i < count) {
          float4 x = value[i];
          if (SPLIT && !is_value) {
            uint2 rounded = uint2(ly_pack2(x.x, x.y), ly_pack2(x.z, x.w));
            uint2 missed = uint2(pack_missed(x.x, x.y, rounded.x), pack_missed(x.z, x.w, rounded.y));
            *(device uint2 *)((device half *)(to + i * channels) + at) = rounded;
            *(device uint2 *)((device half *)(to + i * channels) + size + at) = missed;
          } else {
            *(device float4 *)(to + i * channels + at) = x;
          }
        }
      row += count;
    }
  }
  uint row = row0 + lane, h = head - 2 * args.heads_k;
  if (is_value && lane < CONV_ROWS && row < end) {
    device const float *b = projected + row * args.stride + channels + args.heads_v * args.dim_v;
    gates[row * args.heads_v + h] = float2(state_decay(b[args.heads_v + h], decay_rate[h], dt_bias[h]), write_strength(b[h]));
  }
}

LY_KERNEL(delta_conv_taps, delta_conv_taps<false>)
LY_KERNEL(delta_conv_taps_split, delta_conv_taps<true>)

// delta_carry: keeps the raw rows that the next pass's convolution needs.
// Layout   as delta_conv; spans see lib/pass.h.
// Work     a thread four neighbouring channels. Grid: (spans, conv_width - 1, channels / 4 / threads).
kernel void delta_carry(device const float *projected [[buffer(0)]], device const uint4 *spans [[buffer(1)]],
                        device float *ring [[buffer(2)]], constant DeltaArgs &args [[buffer(3)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint4 span = spans[group.x];
  uint channels = 2 * args.heads_k * args.dim_k + args.heads_v * args.dim_v, age = group.y + 1;
  if (age > span.y) return;
  uint slot = (span.w + span.y - age) % args.conv_width;
  device const float *from = projected + (span.x + span.y - age) * args.stride;
  device float *to = ring + ((span.z * args.layers + args.layer) * args.conv_width + slot) * channels;
  uint at = (group.z * simdgroups * 32 + thread_at) * 4;
  if (at < channels) *(device float4 *)(to + at) = *(device const float4 *)(from + at);
}

// delta_scan: the state through all tokens of a span, token by token.
// Math     as delta_step. Layout: reads [rows, heads_v * dim_v] f32.
// Work     a simdgroup owns a column: it stays in registers from the first token to the last.
//          Grid: (column tiles, value heads, spans).
// Numerics f32. Bound by the latency of a token's sum times the tokens.
template <uint DK>
kernel void delta_scan(device const float *inputs [[buffer(0)]], device const float2 *gates [[buffer(1)]],
                       device const uint4 *spans [[buffer(2)]], device float *memory [[buffer(3)]],
                       device float *reads [[buffer(4)]], constant DeltaArgs &args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup_at [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint PER_LANE = DK / 32;
  uint4 span = spans[group.z];
  uint head = group.y, head_k = head / (args.heads_v / args.heads_k), wanted = group.x * simdgroups + simdgroup_at;
  uint column = min(wanted, args.dim_v - 1), channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device float *home =
      memory + (((span.z * args.layers + args.layer) * args.heads_v + head) * args.dim_v + column) * DK + lane * PER_LANE;
  float s[PER_LANE];
  // A simdgroup behind the last column must not read what that one's owner is about to write.
  for (uint i = 0; i < PER_LANE; ++i) s[i] = wanted < args.dim_v ? home[i] : 0.0f;
  for (uint t = 0; t < span.y; ++t) {
    device const float *row = inputs + (span.x + t) * channels;
    float2 gate = gates[(span.x + t) * args.heads_v + head];
    float k[PER_LANE], q[PER_LANE], k_q = 0.0f, s_k = 0.0f, s_q = 0.0f;
    for (uint i = 0; i < PER_LANE; ++i) {
      q[i] = row[head_k * DK + lane * PER_LANE + i];
      k[i] = row[(args.heads_k + head_k) * DK + lane * PER_LANE + i];
      s_k += s[i] * k[i];
      s_q += s[i] * q[i];
      k_q += k[i] * q[i];
    }
    float4 sums = simd_sum(float4(s_k, s_q, k_q, 0.0f));
    float d = (row[2 * args.heads_k * DK + head * args.dim_v + column] - gate.x * sums.x) * gate.y;
    for (uint i = 0; i < PER_LANE; ++i) s[i] = gate.x * s[i] + d * k[i];
    if (lane == 0 && wanted < args.dim_v)
      reads[((span.x + t) * args.heads_v + head) * args.dim_v + column] = gate.x * sums.y + d * sums.z;
  }
  if (wanted < args.dim_v)
    for (uint i = 0; i < PER_LANE; ++i) home[i] = s[i];
}
LY_KERNEL(delta_scan_32, delta_scan<32>)
LY_KERNEL(delta_scan_64, delta_scan<64>)
LY_KERNEL(delta_scan_128, delta_scan<128>)

// delta_gate: gated RMS norm of what the scan read.
// Math     mixed = rms(reads) * gain * silu(z)
// Layout   reads [rows, heads_v, dim_v] f32; z in projected; mixed [rows, mixed_stride] operands.
// Work     a threadgroup a row, a simdgroup every simdgroups-th head, a lane four neighbouring values, of 256 twice.
// Numerics f32, rounded once at the end. Bound by bytes.
kernel void delta_gate(device const float *reads [[buffer(0)]], device const float *projected [[buffer(1)]],
                       device const float *gain [[buffer(2)]], device float *mixed [[buffer(3)]],
                       constant DeltaArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
  const float4 none = float4(0.0f, 0.0f, 0.0f, 0.0f);
  uint row = group.x, values = args.heads_v * args.dim_v;
  device const float *from = reads + row * values + lane * 4;
  device const float *z = projected + row * args.stride + 2 * args.heads_k * args.dim_k + values + lane * 4;
  float4 gains[2];
#pragma unroll
  for (uint n = 0; n < 2; ++n) gains[n] = lane * 4 + n * 128 < args.dim_v ? *(device const float4 *)(gain + lane * 4 + n * 128) : none;
  for (uint head = simdgroup_at; head < args.heads_v; head += simdgroups) {
    float4 value[2], gate[2];
    float square = 0.0f;
#pragma unroll
    for (uint n = 0; n < 2; ++n) {
      bool inside = lane * 4 + n * 128 < args.dim_v;
      value[n] = inside ? *(device const float4 *)(from + head * args.dim_v + n * 128) : none;
      gate[n] = inside ? *(device const float4 *)(z + head * args.dim_v + n * 128) : none;
    }
#pragma unroll
    for (uint n = 0; n < 2; ++n) square += dot(value[n], value[n]);
    float scale = rsqrt(simd_sum(square) / float(args.dim_v) + args.eps);
#pragma unroll
    for (uint n = 0; n < 2; ++n)
      if (lane * 4 + n * 128 < args.dim_v) {
        float4 opened = float4(silu(gate[n].x), silu(gate[n].y), silu(gate[n].z), silu(gate[n].w));
        store_operands(mixed, row * args.mixed_stride + head * args.dim_v + lane * 4 + n * 128, value[n] * scale * gains[n] * opened, args.narrow);
      }
  }
}
