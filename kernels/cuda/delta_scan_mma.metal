#include "dialect/metal.h"
#include "lib/delta.h"
#include "lib/operand.h"

// The scan of the Gated DeltaNet mixer in chunks of 32 tokens on tensor cores.
//
// With A_i = a_1 .. a_i and R_ij = a_{j+1} .. a_i over a chunk's decays, S the state before it (a value's row), and b_i:
//   x_i = b_i (v_i - A_i S k_i);  d = T x with T = (1 + L)^-1, L_ij = b_i R_ij (k_j k_i) below the diagonal
//   o_i = A_i S q_i + sum_{j<=i} P_ij d_j with P_ij = R_ij (k_j q_i);  S <- A_32 S + sum_j R_32j d_j k_j^T
// What depends on tokens only, T and P among it, is made once for all values: FACTORS floats a chunk and value head.

constant uint CHUNK = 32;        // tokens that are solved together
constant uint VALUES = 32;       // of a threadgroup of the scan: sixteen for two simdgroups
constant uint THREADS = 128;
// A_i at 0, b_i and R_32i behind it; then four matrices of halfs [32][32]: T without its diagonal and P, and what those miss.
constant uint FACTORS = 2144;
constant uint STRENGTHS = 32;
constant uint RESTS = 64;
constant uint SQUARES = 96;
constant uint LOWER_LD = CHUNK + 4;   // of columns of L, in floats

// Where the factors of a chunk start: spans follow each other with room for the chunk that is not full.
inline uint chunk_at(uint span_at, uint4 span, uint chunk, uint head, uint heads_v) {
  return (((span.x + (CHUNK - 1) * span_at) / CHUNK + span_at + chunk) * heads_v + head) * FACTORS;
}

// Sixteen columns: c += a b, b as ly_load_matrices brings it.
inline void mma_pair(thread float (&low)[4], thread float (&high)[4], thread const uint (&a)[4], thread const uint (&b)[4]) {
  ly_mma(low, a[0], a[1], a[2], a[3], b[0], b[1]);
  ly_mma(high, a[0], a[1], a[2], a[3], b[2], b[3]);
}

// Sixteen columns of sums as operand of a product over them, rounded and what that misses.
inline void operand(thread uint (&rounded)[4], thread uint (&missed)[4], thread const float (&low)[4],
                    thread const float (&high)[4]) {
  rounded[0] = ly_pack2(low[0], low[1]);
  rounded[1] = ly_pack2(low[2], low[3]);
  rounded[2] = ly_pack2(high[0], high[1]);
  rounded[3] = ly_pack2(high[2], high[3]);
  missed[0] = pack_missed(low[0], low[1], rounded[0]);
  missed[1] = pack_missed(low[2], low[3], rounded[1]);
  missed[2] = pack_missed(high[0], high[1], rounded[2]);
  missed[3] = pack_missed(high[2], high[3], rounded[3]);
}

// Brings a head's queries or keys of a chunk, from token `first` of the span on, as halfs, and behind the last of them what
// those miss; zeros behind the span's last token.
template <uint DK>
inline void tokens_copy(threadgroup half *to, device const float *from, uint first, uint tokens, uint channels, uint thread_at) {
  for (uint i = thread_at; i < CHUNK * DK / 4; i += THREADS) {
    uint t = i / (DK / 4), part = i % (DK / 4), missed = part / (DK / 8), at = part % (DK / 8) * 8;
    threadgroup half *place = to + (missed * CHUNK + t) * (DK + 8) + at;
    if (first + t < tokens) ly_copy16(place, (device const half *)(from + (first + t) * channels) + missed * DK + at);
    else *(threadgroup uint4 *)place = uint4(0u, 0u, 0u, 0u);
  }
}

// delta_factors_mma: the factors of all chunks.
// Layout   inputs [rows, channels] and gates as delta_conv_split wrote them; factors [chunks, heads_v, FACTORS].
// Work     a threadgroup a chunk and key head: a simdgroup makes sixteen rows of k k or of q k; then one has a value head,
//          a lane a column of T. Tokens behind the span's last neither decay nor write.
//          Grid: (chunks of the longest span, key heads, spans).
// Numerics operands in two halfs, f32 sums; T in f32, split at the end.
template <uint DK>
kernel void delta_factors_mma(device const float *inputs [[buffer(0)]], device const float2 *gates [[buffer(1)]],
                              device const uint4 *spans [[buffer(2)]], device float *factors [[buffer(3)]],
                              constant DeltaArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                              uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  constexpr uint TOKENS = CHUNK * (DK + 8);
  // Queries and keys, each rounded, then what that misses; later L of each simdgroup, column by column.
  threadgroup half tokens[4 * CHUNK * (DK + 8) > 8 * CHUNK * LOWER_LD ? 4 * CHUNK * (DK + 8) : 8 * CHUNK * LOWER_LD];
  threadgroup half *query = tokens, *key = tokens + 2 * CHUNK * (DK + 8);
  threadgroup float products[2 * CHUNK * (CHUNK + 1)];   // k_j k_i, then k_j q_i
  uint4 span = spans[group.z];
  uint first = group.x * CHUNK, head_k = group.y, shared_by = args.heads_v / args.heads_k;
  if (first >= span.y) return;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device const float *from = inputs + span.x * channels + head_k * DK;
  tokens_copy<DK>(query, from, first, span.y, channels, thread_at);
  tokens_copy<DK>(key, from + args.heads_k * DK, first, span.y, channels, thread_at);
  ly_copy_commit();
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint which = simdgroup_at / 2, top = simdgroup_at % 2 * 16;
  float sums[CHUNK / 8][4];
#pragma unroll
  for (uint n = 0; n < CHUNK / 8; ++n)
    for (uint c = 0; c < 4; ++c) sums[n][c] = 0.0f;
  threadgroup const half *rows = (which == 0 ? key : query) + (top + lane % 16) * (DK + 8) + lane / 16 * 8;
  threadgroup const half *columns = key + (lane % 8 + lane / 16 * 8) * (DK + 8) + lane / 8 % 2 * 8;
#pragma unroll
  for (uint i = 0; i < DK / 16; ++i) {
    uint a[4], a_missed[4];
    ly_load_matrices(a, rows + i * 16);
    ly_load_matrices(a_missed, rows + TOKENS + i * 16);
    for (uint n = 0; n < CHUNK / 16; ++n) {
      uint b[4], b_missed[4];
      ly_load_matrices(b, columns + n * 16 * (DK + 8) + i * 16);
      ly_load_matrices(b_missed, columns + TOKENS + n * 16 * (DK + 8) + i * 16);
      mma_pair(sums[2 * n], sums[2 * n + 1], a, b);
      mma_pair(sums[2 * n], sums[2 * n + 1], a_missed, b);
      mma_pair(sums[2 * n], sums[2 * n + 1], a, b_missed);
    }
  }
#pragma unroll
  for (uint n = 0; n < CHUNK / 8; ++n)
    for (uint c = 0; c < 4; ++c)
      products[(which * CHUNK + top + lane / 4 + c / 2 * 8) * (CHUNK + 1) + n * 8 + lane % 4 * 2 + c % 2] = sums[n][c];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  bool inside = first + lane < span.y;
  threadgroup float *below = (threadgroup float *)tokens + simdgroup_at * (CHUNK * LOWER_LD);
  for (uint at = simdgroup_at; at < shared_by; at += THREADS / 32) {
    uint head = head_k * shared_by + at;
    float2 gate = inside ? gates[(span.x + first + lane) * args.heads_v + head] : float2(1.0f, 0.0f);
    device float *to = factors + chunk_at(group.z, span, group.x, head, args.heads_v);
    device half *squares = (device half *)(to + SQUARES) + lane;
    float lower[CHUNK], solve[CHUNK], rest = 1.0f, since_start = 1.0f;
#pragma unroll
    for (uint i = 0; i < CHUNK; ++i) {
      float decay = simd_broadcast(gate.x, i), strength = simd_broadcast(gate.y, i);
      if (i > lane) rest *= decay;
      if (i <= lane) since_start *= decay;
      lower[i] = i > lane ? strength * rest * products[i * (CHUNK + 1) + lane] : 0.0f;
      float read = i >= lane ? rest * products[(CHUNK + i) * (CHUNK + 1) + lane] : 0.0f;
      squares[(CHUNK + i) * CHUNK] = half(read);
      squares[(3 * CHUNK + i) * CHUNK] = half(read - float(half(read)));
      solve[i] = i == lane ? 1.0f : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint i = 0; i < CHUNK; i += 4)
      *(threadgroup float4 *)(below + lane * LOWER_LD + i) = float4(lower[i], lower[i + 1], lower[i + 2], lower[i + 3]);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Column by column of L: what a solved row does to the ones below does not depend on each other. All lanes want the same
    // value, and one load brings four; a shuffle brings one.
#pragma unroll
    for (uint m = 0; m < CHUNK; ++m)
      for (uint i = (m + 1) / 4 * 4; i < CHUNK; i += 4) {
        float4 four = *(threadgroup const float4 *)(below + m * LOWER_LD + i);
        for (uint c = 0; c < 4; ++c)
          if (i + c > m) solve[i + c] -= four[c] * solve[m];
      }
    to[lane] = since_start;
    to[STRENGTHS + lane] = gate.y;
    to[RESTS + lane] = rest;
#pragma unroll
    for (uint i = 0; i < CHUNK; ++i) {
      float under = i > lane ? solve[i] : 0.0f;
      squares[i * CHUNK] = half(under);
      squares[(2 * CHUNK + i) * CHUNK] = half(under - float(half(under)));
    }
  }
}
LY_KERNEL(delta_factors_mma_32, delta_factors_mma<32>)
LY_KERNEL(delta_factors_mma_64, delta_factors_mma<64>)
LY_KERNEL(delta_factors_mma_128, delta_factors_mma<128>)

// Brings part `step` of STEPS of what delta_scan_mma needs of a chunk: between products copies take no time. Tokens behind the
// span's last are that one again: they neither decay nor write. Of T and P the blocks of 16 x 16 above the diagonal are left
// away; parts of a row change places with the row, so that eight rows are read without conflicts and need no padding.
template <uint DK, uint STEPS>
inline void chunk_copy(uint step, threadgroup half *query, threadgroup half *key, threadgroup half *squares,
                       threadgroup float *factor, device const float *queries, device const float *keys,
                       device const float *made, uint first, uint last, uint channels, uint thread_at) {
  constexpr uint PARTS = DK / 4, TURN = THREADS / PARTS;
  constexpr uint EACH = (CHUNK / TURN + STEPS - 1) / STEPS;
  uint part = thread_at % PARTS, row = thread_at / PARTS;
  uint to = (part / (DK / 8) * CHUNK + row) * (DK + 8) + part % (DK / 8) * 8;
#pragma unroll
  for (uint i = step * EACH; i < min((step + 1) * EACH, CHUNK / TURN); ++i) {
    uint at = min(first + row + i * TURN, last) * channels + part * 4;
    ly_copy16(query + to + i * TURN * (DK + 8), queries + at);
    ly_copy16(key + to + i * TURN * (DK + 8), keys + at);
  }
  if (step + 1 < STEPS) return;
  uint quarter = thread_at % 4, line = thread_at / 4;
  if (line % CHUNK >= 16 || quarter < 2)
#pragma unroll
    for (uint i = 0; i < 4 * CHUNK * 4 / THREADS; ++i)
      ly_copy16(squares + (line + i * (THREADS / 4)) * CHUNK + (quarter ^ line / 2 % 4) * 8,
                made + SQUARES + (thread_at + i * THREADS) * 4);
  if (thread_at < SQUARES / 4) ly_copy16(factor + thread_at * 4, made + thread_at * 4);
}

// delta_scan_mma: the state through all tokens of a span; otherwise as delta_scan_blocked.
// Work     two simdgroups have sixteen values of a head, and half of the keys' dimensions each: their part of the state stays
//          in registers as sums of one product and becomes operands of the next where it is, and so do x, d and o. They
//          exchange what their halves add to S k and S q: S k of all tokens, since both need T x for their half of the
//          update; S q of sixteen tokens, which one of them finishes. Tokens come one chunk ahead, values to registers.
//          Grid: (tiles of VALUES, value heads, spans).
// Numerics f32 sums and state, operands of one half or of two. What is read, S q and P d, may be a small rest of large terms,
//          which the norm behind enlarges: there, and in T x before it, all operands are in two halfs, and so are the keys
//          that the state keeps. S k has one, and so has d in the update: what those miss changes what is written by a
//          rounding, and no more. docs/kernels.md tells what each is worth. Bound by the wait of a chunk for the one before.
template <uint DK>
kernel void delta_scan_mma(device const float *inputs [[buffer(0)]], device const float *factors [[buffer(1)]],
                           device const uint4 *spans [[buffer(2)]], device float *memory [[buffer(3)]],
                           device float *reads [[buffer(4)]], constant DeltaArgs &args [[buffer(5)]],
                           uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<THREADS, 1>();
  ly_threadgroup_kib<98>();   // GPUs without warpgroups have as much
  constexpr uint TOKENS = CHUNK * (DK + 8), STEPS = DK / 32, BLOCKS = 4 * CHUNK * CHUNK;
  threadgroup half query[4 * CHUNK * (DK + 8)];   // of two chunks: rounded, then what that misses
  threadgroup half key[4 * CHUNK * (DK + 8)];
  threadgroup half squares[8 * CHUNK * CHUNK];
  threadgroup float factor[2 * SQUARES];
  // Of each simdgroup, for the other of its pair: S k, then S q of the other's tokens.
  threadgroup float partial[THREADS / 32 * 6 * 128];
  uint4 span = spans[group.z];
  uint head = group.y, head_k = head / (args.heads_v / args.heads_k), t = lane % 4, side = simdgroup_at % 2;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v, chunks = (span.y + CHUNK - 1) / CHUNK, last = span.y - 1;
  uint upper = group.x * VALUES + simdgroup_at / 2 * 16 + lane / 4, lower = upper + 8;
  device const float *queries = inputs + span.x * channels + head_k * DK, *keys_from = queries + args.heads_k * DK;
  device const float *values_from = inputs + span.x * channels + 2 * args.heads_k * DK + head * args.dim_v;
  device float *home = memory + ((span.z * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK;
  home += side * (DK / 2) + 2 * t;
  device float *out = reads + (span.x * args.heads_v + head) * args.dim_v;
  float s[2 * STEPS][4];
#pragma unroll
  for (uint n = 0; n < 2 * STEPS; ++n)
    for (uint h = 0; h < 2; ++h) {
      uint row = h == 0 ? upper : lower;
      float2 two = row < args.dim_v ? *(device const float2 *)(home + row * DK + n * 8) : float2(0.0f, 0.0f);
      s[n][2 * h] = two.x;
      s[n][2 * h + 1] = two.y;
    }
  // A row behind the last value takes that value's inputs, and what becomes of them is not stored.
  uint value_at[2] = {min(upper, args.dim_v - 1), min(lower, args.dim_v - 1)};
  float values[CHUNK / 8][4];
#pragma unroll
  for (uint n = 0; n < CHUNK / 8; ++n)
    for (uint c = 0; c < 4; ++c) values[n][c] = values_from[min(n * 8 + 2 * t + c % 2, last) * channels + value_at[c / 2]];
  chunk_copy<DK, 1>(0, query, key, squares, factor, queries, keys_from,
                    factors + chunk_at(group.z, span, 0, head, args.heads_v), 0, last, channels, thread_at);
  ly_copy_commit();

  // Rows of b of a product, columns of the keys in the update; parts of rows of T and P that change places.
  uint row_at = (lane % 8 + lane / 16 * 8) * (DK + 8) + lane / 8 % 2 * 8 + side * (DK / 2);
  uint column_at = lane % 16 * (DK + 8) + lane / 16 * 8 + side * (DK / 2);
  uint line_at = (lane % 8 + lane / 16 * 8) * CHUNK, left = (lane / 8 % 2 ^ lane % 8 / 2) * 8, right = left ^ 16;
  threadgroup float4 *mine = (threadgroup float4 *)partial + simdgroup_at * 6 * 32 + lane;
  threadgroup const float4 *other = (threadgroup const float4 *)partial + (simdgroup_at ^ 1) * 6 * 32 + lane;
  for (uint chunk = 0; chunk < chunks; ++chunk) {
    uint first = chunk * CHUNK, half_at = chunk % 2, next_at = 1 - half_at;
    ly_copy_wait<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Behind the last chunk it comes once more: a branch would keep copies from standing between products.
    device const float *next_factors = factors + chunk_at(group.z, span, min(chunk + 1, chunks - 1), head, args.heads_v);
    threadgroup const half *keys = key + half_at * 2 * TOKENS;
    threadgroup const half *query_rows = query + half_at * 2 * TOKENS + row_at;
    threadgroup const half *lines = squares + half_at * BLOCKS + line_at;
    threadgroup const float *factors_at = factor + half_at * SQUARES + 2 * t;
    // S k of all tokens; S q of this simdgroup's sixteen, then of the other's.
    float x[CHUNK / 8][4], o[CHUNK / 8][4];
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n)
      for (uint c = 0; c < 4; ++c) x[n][c] = o[n][c] = 0.0f;
#pragma unroll
    for (uint i = 0; i < STEPS; ++i) {
      uint a[4], a_missed[4], k[2][4], q[2][4], q_missed[2][4];
      operand(a, a_missed, s[2 * i], s[2 * i + 1]);
#pragma unroll
      for (uint n = 0; n < 2; ++n) {
        ly_load_matrices(q[n], query_rows + (side ^ n) * 16 * (DK + 8) + i * 16);
        ly_load_matrices(k[n], keys + row_at + n * 16 * (DK + 8) + i * 16);
        ly_load_matrices(q_missed[n], query_rows + TOKENS + (side ^ n) * 16 * (DK + 8) + i * 16);
      }
      // No product waits for the one before it.
#pragma unroll
      for (uint n = 0; n < 2; ++n) mma_pair(o[2 * n], o[2 * n + 1], a, q[n]);
#pragma unroll
      for (uint n = 0; n < 2; ++n) mma_pair(x[2 * n], x[2 * n + 1], a, k[n]);
#pragma unroll
      for (uint n = 0; n < 2; ++n) mma_pair(o[2 * n], o[2 * n + 1], a_missed, q[n]);
#pragma unroll
      for (uint n = 0; n < 2; ++n) mma_pair(o[2 * n], o[2 * n + 1], a, q_missed[n]);
      chunk_copy<DK, STEPS>(i, query + next_at * 2 * TOKENS, key + next_at * 2 * TOKENS, squares + next_at * BLOCKS,
                            factor + next_at * SQUARES, queries, keys_from, next_factors, first + CHUNK, last, channels,
                            thread_at);
    }
    ly_copy_commit();
#pragma unroll
    for (uint n = 0; n < 4; ++n) mine[n * 32] = float4(x[n][0], x[n][1], x[n][2], x[n][3]);
#pragma unroll
    for (uint n = 0; n < 2; ++n) mine[(4 + n) * 32] = float4(o[2 + n][0], o[2 + n][1], o[2 + n][2], o[2 + n][3]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n) {
      float2 starts = *(threadgroup const float2 *)(factors_at + n * 8);
      float2 strengths = *(threadgroup const float2 *)(factors_at + STRENGTHS + n * 8);
      float4 rest = other[n * 32];
      for (uint c = 0; c < 4; ++c) {
        float start = c % 2 == 0 ? starts.x : starts.y, strength = c % 2 == 0 ? strengths.x : strengths.y;
        x[n][c] = strength * (values[n][c] - start * (x[n][c] + rest[c]));
      }
    }
    // d = x + (T - 1) x: d takes the place of x. The second row of blocks is summed apart.
    uint a[2][4], a_missed[2][4], b[3][4], b_missed[3][4];
    float apart[2][4];
#pragma unroll
    for (uint i = 0; i < 3; ++i) {
      threadgroup const half *at = lines + (i + 1) / 2 * 16 * CHUNK + (i == 2 ? right : left);
      ly_load_matrices(b[i], at);
      ly_load_matrices(b_missed[i], at + 2 * CHUNK * CHUNK);
    }
#pragma unroll
    for (uint i = 0; i < 2; ++i) {
      operand(a[i], a_missed[i], x[2 * i], x[2 * i + 1]);
      for (uint c = 0; c < 4; ++c) apart[i][c] = 0.0f;
    }
    mma_pair(x[0], x[1], a[0], b[0]);
    mma_pair(x[2], x[3], a[0], b[1]);
    mma_pair(apart[0], apart[1], a[1], b[2]);
    mma_pair(x[0], x[1], a_missed[0], b[0]);
    mma_pair(x[2], x[3], a_missed[0], b[1]);
    mma_pair(apart[0], apart[1], a_missed[1], b[2]);
    mma_pair(x[0], x[1], a[0], b_missed[0]);
    mma_pair(x[2], x[3], a[0], b_missed[1]);
    mma_pair(apart[0], apart[1], a[1], b_missed[2]);
#pragma unroll
    for (uint c = 0; c < 4; ++c) {
      x[2][c] += apart[0][c];
      x[3][c] += apart[1][c];
    }
    // o += P d, of this simdgroup's tokens.
#pragma unroll
    for (uint n = 0; n < 2; ++n) {
      float2 starts = *(threadgroup const float2 *)(factors_at + (side * 2 + n) * 8);
      float4 rest = other[(4 + n) * 32];
      for (uint c = 0; c < 4; ++c) o[n][c] = (o[n][c] + rest[c]) * (c % 2 == 0 ? starts.x : starts.y);
    }
#pragma unroll
    for (uint i = 0; i < 2; ++i) operand(a[i], a_missed[i], x[2 * i], x[2 * i + 1]);
    threadgroup const half *read_lines = lines + (CHUNK + side * 16) * CHUNK;
    ly_load_matrices(b[0], read_lines + left);
    ly_load_matrices(b_missed[0], read_lines + left + 2 * CHUNK * CHUNK);
    mma_pair(o[0], o[1], a[0], b[0]);
    mma_pair(o[0], o[1], a_missed[0], b[0]);
    mma_pair(o[0], o[1], a[0], b_missed[0]);
    if (side == 1) {
      ly_load_matrices(b[1], read_lines + right);
      ly_load_matrices(b_missed[1], read_lines + right + 2 * CHUNK * CHUNK);
      mma_pair(o[0], o[1], a[1], b[1]);
      mma_pair(o[0], o[1], a_missed[1], b[1]);
      mma_pair(o[0], o[1], a[1], b_missed[1]);
    }
#pragma unroll
    for (uint n = 0; n < 2; ++n)
      for (uint c = 0; c < 4; ++c) {
        uint token = first + (side * 2 + n) * 8 + 2 * t + c % 2, row = c < 2 ? upper : lower;
        if (token < span.y && row < args.dim_v) out[token * args.heads_v * args.dim_v + row] = o[n][c];
      }
    // The state: what is left of it, and what these tokens write.
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n) {
      float2 rests = *(threadgroup const float2 *)(factors_at + RESTS + n * 8);
      for (uint c = 0; c < 4; ++c) x[n][c] *= c % 2 == 0 ? rests.x : rests.y;
    }
#pragma unroll
    for (uint i = 0; i < 2; ++i) operand(a[i], a_missed[i], x[2 * i], x[2 * i + 1]);   // rounded is enough
    float left_over = factor[half_at * SQUARES + CHUNK - 1];
#pragma unroll
    for (uint n = 0; n < 2 * STEPS; ++n)
      for (uint c = 0; c < 4; ++c) s[n][c] *= left_over;
#pragma unroll
    for (uint n = 0; n < 4; ++n) {
      uint k = n / 2, missed = n % 2;
#pragma unroll
      for (uint i = 0; i < STEPS; ++i) {
        uint columns[4];
        ly_load_transposed(columns, keys + missed * TOKENS + k * 16 * (DK + 8) + column_at + i * 16);
        mma_pair(s[2 * i], s[2 * i + 1], a[k], columns);
      }
      // Between products the next chunk's values set out; behind the last chunk they are what is there.
#pragma unroll
      for (uint c = 0; c < 4; ++c)
        values[n][c] = values_from[min(first + CHUNK + n * 8 + 2 * t + c % 2, last) * channels + value_at[c / 2]];
    }
  }
  ly_copy_wait<0>();
#pragma unroll
  for (uint n = 0; n < 2 * STEPS; ++n)
    for (uint h = 0; h < 2; ++h) {
      uint row = h == 0 ? upper : lower;
      if (row < args.dim_v) *(device float2 *)(home + row * DK + n * 8) = float2(s[n][2 * h], s[n][2 * h + 1]);
    }
}
LY_KERNEL(delta_scan_mma_32, delta_scan_mma<32>)
LY_KERNEL(delta_scan_mma_64, delta_scan_mma<64>)
LY_KERNEL(delta_scan_mma_128, delta_scan_mma<128>)
