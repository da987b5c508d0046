#include "dialect/metal.h"
#include "lib/delta.h"

// The scan of the Gated DeltaNet mixer in chunks of 32 tokens on tensor cores.
//
// With A_i = a_1 .. a_i and R_ij = a_{j+1} .. a_i over a chunk's decays, S the state before it (a value's row), and b_i:
//   x_i = b_i (v_i - A_i S k_i);  d = T x with T = (1 + L)^-1, L_ij = b_i R_ij (k_j k_i) below the diagonal
//   o_i = A_i S q_i + sum_{j<=i} P_ij d_j with P_ij = R_ij (k_j q_i);  S <- A_32 S + sum_j R_32j d_j k_j^T
// What depends on tokens only, T and P among it, is made once for all values: FACTORS floats a chunk and value head.

constant uint CHUNK = 32;        // tokens that are solved together
constant uint VALUES = 64;       // of a threadgroup: sixteen a simdgroup
constant uint THREADS = 128;
constant uint FACTORS = 1120;    // A_i at 0, b_i and R_32i behind it; then T without its diagonal and P, halfs [32][32]
constant uint STRENGTHS = 32;
constant uint RESTS = 64;
constant uint SOLVES = 96;
constant uint READS = 608;
constant uint SQUARE = CHUNK + 8;   // from row to row of T and P in threadgroup memory, in halfs: without conflicts

// Where the factors of a chunk start: spans follow each other with room for the chunk that is not full.
inline uint chunk_at(uint span_at, uint4 span, uint chunk, uint head, uint heads_v) {
  return (((span.x + (CHUNK - 1) * span_at) / CHUNK + span_at + chunk) * heads_v + head) * FACTORS;
}

// Brings a chunk of queries or keys, from token `first` of the span on; zeros behind its last.
template <uint DK>
inline void tokens_copy(threadgroup half *to, device const half *from, uint first, uint tokens, uint channels, uint thread_at) {
  for (uint i = thread_at; i < CHUNK * DK / 8; i += THREADS) {
    uint t = i / (DK / 8), at = i % (DK / 8) * 8;
    if (first + t < tokens) ly_copy16(to + t * (DK + 8) + at, from + (first + t) * channels + at);
    else *(threadgroup uint4 *)(to + t * (DK + 8) + at) = uint4(0u, 0u, 0u, 0u);
  }
}

// delta_factors_mma: the factors of all chunks.
// Layout   inputs [rows, channels] f16 and gates as delta_conv wrote them; factors [chunks, heads_v, FACTORS].
// Work     a threadgroup a chunk and key head: a simdgroup makes sixteen rows of k k or of q k; then one has a value head,
//          a lane a column of T. Tokens behind the span's last neither decay nor write.
//          Grid: (chunks of the longest span, key heads, spans).
// Numerics f16 operands, f32 sums; T in f32, rounded at the end.
template <uint DK>
kernel void delta_factors_mma(device const half *inputs [[buffer(0)]], device const float2 *gates [[buffer(1)]],
                              device const uint4 *spans [[buffer(2)]], device float *factors [[buffer(3)]],
                              constant DeltaArgs &args [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                              uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  threadgroup half query[CHUNK * (DK + 8)];
  threadgroup half key[CHUNK * (DK + 8)];
  threadgroup float products[2 * CHUNK * (CHUNK + 1)];   // k_j k_i, then k_j q_i
  uint4 span = spans[group.z];
  uint first = group.x * CHUNK, head_k = group.y, shared_by = args.heads_v / args.heads_k;
  if (first >= span.y) return;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v;
  device const half *from = inputs + span.x * channels + head_k * DK;
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
    uint a[4];
    ly_load_matrices(a, rows + i * 16);
    for (uint n = 0; n < CHUNK / 16; ++n) {
      uint b[4];
      ly_load_matrices(b, columns + n * 16 * (DK + 8) + i * 16);
      ly_mma(sums[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
      ly_mma(sums[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
#pragma unroll
  for (uint n = 0; n < CHUNK / 8; ++n)
    for (uint c = 0; c < 4; ++c)
      products[(which * CHUNK + top + lane / 4 + c / 2 * 8) * (CHUNK + 1) + n * 8 + lane % 4 * 2 + c % 2] = sums[n][c];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  bool inside = first + lane < span.y;
  for (uint base = 0; base < shared_by; base += THREADS / 32) {
    uint head = head_k * shared_by + min(base + simdgroup_at, shared_by - 1);
    float2 gate = inside ? gates[(span.x + first + lane) * args.heads_v + head] : float2(1.0f, 0.0f);
    device float *to = factors + chunk_at(group.z, span, group.x, head, args.heads_v);
    bool writes = base + simdgroup_at < shared_by;
    float lower[CHUNK], solve[CHUNK], rest = 1.0f, since_start = 1.0f;
#pragma unroll
    for (uint i = 0; i < CHUNK; ++i) {
      float decay = simd_broadcast(gate.x, i), strength = simd_broadcast(gate.y, i);
      if (i > lane) rest *= decay;
      if (i <= lane) since_start *= decay;
      lower[i] = i > lane ? strength * rest * products[i * (CHUNK + 1) + lane] : 0.0f;
      float read = i >= lane ? rest * products[(CHUNK + i) * (CHUNK + 1) + lane] : 0.0f;
      if (writes) ((device half *)(to + READS))[i * CHUNK + lane] = half(read);
      solve[i] = i == lane ? 1.0f : 0.0f;
    }
    // Column by column of L: what a solved row does to the ones below does not depend on each other.
#pragma unroll
    for (uint m = 0; m < CHUNK; ++m)
      for (uint i = m + 1; i < CHUNK; ++i) solve[i] -= simd_broadcast(lower[i], m) * solve[m];
    if (writes) {
      to[lane] = since_start;
      to[STRENGTHS + lane] = gate.y;
      to[RESTS + lane] = rest;
#pragma unroll
      for (uint i = 0; i < CHUNK; ++i) ((device half *)(to + SOLVES))[i * CHUNK + lane] = half(i > lane ? solve[i] : 0.0f);
    }
  }
}
LY_KERNEL(delta_factors_mma_32, delta_factors_mma<32>)
LY_KERNEL(delta_factors_mma_64, delta_factors_mma<64>)
LY_KERNEL(delta_factors_mma_128, delta_factors_mma<128>)

// delta_scan_mma: the state through all tokens of a span; otherwise as delta_scan_blocked.
// Work     a simdgroup has sixteen values of a head: their rows of the state stay in its registers as sums of one product
//          and become operands of the next where they are, and so do x, d and o; it never waits for another simdgroup but
//          for tokens, which come one chunk ahead. Grid: (tiles of VALUES, value heads, spans).
// Numerics f16 operands (tokens, and the state where it is multiplied), f32 sums and state. Bound by multiply-adds of one
//          simdgroup a scheduler.
template <uint DK>
kernel void delta_scan_mma(device const half *inputs [[buffer(0)]], device const float *factors [[buffer(1)]],
                           device const uint4 *spans [[buffer(2)]], device float *memory [[buffer(3)]],
                           device float *reads [[buffer(4)]], constant DeltaArgs &args [[buffer(5)]],
                           uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<THREADS, 1>();
  threadgroup half query[2 * CHUNK * (DK + 8)];
  threadgroup half key[2 * CHUNK * (DK + 8)];
  threadgroup half value[CHUNK * (VALUES + 8)];
  threadgroup half squares[2 * CHUNK * SQUARE];   // T, then P
  threadgroup float factor[SOLVES];
  uint4 span = spans[group.z];
  uint head = group.y, head_k = head / (args.heads_v / args.heads_k), tile = group.x * VALUES, t = lane % 4;
  uint channels = 2 * args.heads_k * DK + args.heads_v * args.dim_v, chunks = (span.y + CHUNK - 1) / CHUNK;
  device const half *from = inputs + span.x * channels;
  uint upper = tile + simdgroup_at * 16 + lane / 4, lower = upper + 8;
  device float *home = memory + ((span.z * args.layers + args.layer) * args.heads_v + head) * args.dim_v * DK;
  float s[DK / 8][4];
#pragma unroll
  for (uint n = 0; n < DK / 8; ++n)
    for (uint h = 0; h < 2; ++h) {
      uint row = h == 0 ? upper : lower;
      float2 two = row < args.dim_v ? *(device const float2 *)(home + row * DK + n * 8 + 2 * t) : float2(0.0f, 0.0f);
      s[n][2 * h] = two.x;
      s[n][2 * h + 1] = two.y;
    }
  for (uint chunk = 0; chunk < chunks + 1; ++chunk) {
    // Tokens of `chunk` set out, those of the chunk before have come.
    uint first = chunk * CHUNK, half_at = chunk % 2;
    uint values[CHUNK / 8][2], solves[3][4], shares[3][4];
    float2 starts[CHUNK / 8], strengths[CHUNK / 8], rests[CHUNK / 8];
    float last = 1.0f;
    if (chunk > 0) {
      ly_copy_wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup const half *value_rows = value + (lane % 8 + lane / 16 * 8) * (VALUES + 8) + simdgroup_at * 16 + lane / 8 % 2 * 8;
      threadgroup const half *square_rows = squares + (lane % 8 + lane / 16 * 8) * SQUARE + lane / 8 % 2 * 8;
#pragma unroll
      for (uint n = 0; n < CHUNK / 16; ++n) {
        uint v[4];
        ly_load_transposed(v, value_rows + n * 16 * (VALUES + 8));
        values[2 * n][0] = v[0];
        values[2 * n][1] = v[1];
        values[2 * n + 1][0] = v[2];
        values[2 * n + 1][1] = v[3];
      }
      // Blocks of 16 x 16 on and below the diagonal: rows 0, then rows 1.
#pragma unroll
      for (uint i = 0; i < 3; ++i) {
        uint at = (i + 1) / 2 * 16 * SQUARE + i / 2 * 16;
        ly_load_matrices(solves[i], square_rows + at);
        ly_load_matrices(shares[i], square_rows + CHUNK * SQUARE + at);
      }
#pragma unroll
      for (uint n = 0; n < CHUNK / 8; ++n) {
        starts[n] = *(threadgroup const float2 *)(factor + n * 8 + 2 * t);
        strengths[n] = *(threadgroup const float2 *)(factor + STRENGTHS + n * 8 + 2 * t);
        rests[n] = *(threadgroup const float2 *)(factor + RESTS + n * 8 + 2 * t);
      }
      last = factor[CHUNK - 1];
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (chunk < chunks) {
      tokens_copy<DK>(query + half_at * (CHUNK * (DK + 8)), from + head_k * DK, first, span.y, channels, thread_at);
      tokens_copy<DK>(key + half_at * (CHUNK * (DK + 8)), from + (args.heads_k + head_k) * DK, first, span.y, channels, thread_at);
      for (uint i = thread_at; i < CHUNK * VALUES / 8; i += THREADS) {
        uint token = i / (VALUES / 8), at = i % (VALUES / 8) * 8;
        threadgroup half *to = value + token * (VALUES + 8) + at;
        if (first + token < span.y && tile + at < args.dim_v)
          ly_copy16(to, from + (first + token) * channels + 2 * args.heads_k * DK + head * args.dim_v + tile + at);
        else *(threadgroup uint4 *)to = uint4(0u, 0u, 0u, 0u);
      }
      device const float *made = factors + chunk_at(group.z, span, chunk, head, args.heads_v);
      for (uint i = thread_at; i < 2 * CHUNK * CHUNK / 8; i += THREADS)
        ly_copy16(squares + i / (CHUNK / 8) * SQUARE + i % (CHUNK / 8) * 8, made + SOLVES + i * 4);
      if (thread_at < SOLVES / 4) ly_copy16(factor + thread_at * 4, made + thread_at * 4);
      ly_copy_commit();
    }
    if (chunk == 0) continue;

    threadgroup const half *keys = key + (1 - half_at) * (CHUNK * (DK + 8));
    threadgroup const half *key_rows = keys + (lane % 8 + lane / 16 * 8) * (DK + 8) + lane / 8 % 2 * 8;
    threadgroup const half *query_rows = query + (1 - half_at) * (CHUNK * (DK + 8)) + (lane % 8 + lane / 16 * 8) * (DK + 8) + lane / 8 % 2 * 8;
    float x[CHUNK / 8][4], o[CHUNK / 8][4];
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n)
      for (uint c = 0; c < 4; ++c) x[n][c] = o[n][c] = 0.0f;
    // S k and S q of all tokens.
#pragma unroll
    for (uint i = 0; i < DK / 16; ++i) {
      uint a0 = ly_pack2(s[2 * i][0], s[2 * i][1]), a1 = ly_pack2(s[2 * i][2], s[2 * i][3]);
      uint a2 = ly_pack2(s[2 * i + 1][0], s[2 * i + 1][1]), a3 = ly_pack2(s[2 * i + 1][2], s[2 * i + 1][3]);
      for (uint n = 0; n < CHUNK / 16; ++n) {
        uint k[4], q[4];
        ly_load_matrices(k, key_rows + n * 16 * (DK + 8) + i * 16);
        ly_load_matrices(q, query_rows + n * 16 * (DK + 8) + i * 16);
        ly_mma(x[2 * n], a0, a1, a2, a3, k[0], k[1]);
        ly_mma(x[2 * n + 1], a0, a1, a2, a3, k[2], k[3]);
        ly_mma(o[2 * n], a0, a1, a2, a3, q[0], q[1]);
        ly_mma(o[2 * n + 1], a0, a1, a2, a3, q[2], q[3]);
      }
    }
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n)
      for (uint c = 0; c < 4; ++c) {
        float start = c % 2 == 0 ? starts[n].x : starts[n].y, strength = c % 2 == 0 ? strengths[n].x : strengths[n].y;
        uint two = values[n][c / 2];
        float v = float(as_type<half>(ushort(c % 2 == 0 ? two & 0xffffu : two >> 16)));
        x[n][c] = strength * (v - start * x[n][c]);
        o[n][c] *= start;
      }
    // d = x + (T - 1) x, then o += P d: d takes the place of x.
    uint a[2][4];
#pragma unroll
    for (uint i = 0; i < 2; ++i)
      for (uint c = 0; c < 4; ++c) a[i][c] = ly_pack2(x[2 * i + c / 2][c % 2 * 2], x[2 * i + c / 2][c % 2 * 2 + 1]);
#pragma unroll
    for (uint i = 0; i < 3; ++i) {
      uint n = (i + 1) / 2, k = i / 2;
      ly_mma(x[2 * n], a[k][0], a[k][1], a[k][2], a[k][3], solves[i][0], solves[i][1]);
      ly_mma(x[2 * n + 1], a[k][0], a[k][1], a[k][2], a[k][3], solves[i][2], solves[i][3]);
    }
#pragma unroll
    for (uint i = 0; i < 2; ++i)
      for (uint c = 0; c < 4; ++c) a[i][c] = ly_pack2(x[2 * i + c / 2][c % 2 * 2], x[2 * i + c / 2][c % 2 * 2 + 1]);
#pragma unroll
    for (uint i = 0; i < 3; ++i) {
      uint n = (i + 1) / 2, k = i / 2;
      ly_mma(o[2 * n], a[k][0], a[k][1], a[k][2], a[k][3], shares[i][0], shares[i][1]);
      ly_mma(o[2 * n + 1], a[k][0], a[k][1], a[k][2], a[k][3], shares[i][2], shares[i][3]);
    }
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n)
      for (uint c = 0; c < 4; ++c) {
        uint token = first - CHUNK + n * 8 + 2 * t + c % 2, row = c < 2 ? upper : lower;
        if (token < span.y && row < args.dim_v) reads[((span.x + token) * args.heads_v + head) * args.dim_v + row] = o[n][c];
      }
    // The state: what is left of it, and what these tokens write.
#pragma unroll
    for (uint n = 0; n < CHUNK / 8; ++n)
      for (uint c = 0; c < 4; ++c) x[n][c] *= c % 2 == 0 ? rests[n].x : rests[n].y;
#pragma unroll
    for (uint i = 0; i < 2; ++i)
      for (uint c = 0; c < 4; ++c) a[i][c] = ly_pack2(x[2 * i + c / 2][c % 2 * 2], x[2 * i + c / 2][c % 2 * 2 + 1]);
#pragma unroll
    for (uint n = 0; n < DK / 8; ++n)
      for (uint c = 0; c < 4; ++c) s[n][c] *= last;
    threadgroup const half *key_columns = keys + lane % 16 * (DK + 8) + lane / 16 * 8;
#pragma unroll
    for (uint i = 0; i < DK / 16; ++i)
      for (uint k = 0; k < 2; ++k) {
        uint b[4];
        ly_load_transposed(b, key_columns + k * 16 * (DK + 8) + i * 16);
        ly_mma(s[2 * i], a[k][0], a[k][1], a[k][2], a[k][3], b[0], b[1]);
        ly_mma(s[2 * i + 1], a[k][0], a[k][1], a[k][2], a[k][3], b[2], b[3]);
      }
  }
#pragma unroll
  for (uint n = 0; n < DK / 8; ++n)
    for (uint h = 0; h < 2; ++h) {
      uint row = h == 0 ? upper : lower;
      if (row < args.dim_v) *(device float2 *)(home + row * DK + n * 8 + 2 * t) = float2(s[n][2 * h], s[n][2 * h + 1]);
    }
}
LY_KERNEL(delta_scan_mma_32, delta_scan_mma<32>)
LY_KERNEL(delta_scan_mma_64, delta_scan_mma<64>)
LY_KERNEL(delta_scan_mma_128, delta_scan_mma<128>)
