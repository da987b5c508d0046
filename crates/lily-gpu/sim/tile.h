// The tile words: an accumulator of M x N floats, its elements in row-major order over the lanes, M * N / 32 to a lane.
// A multiplication is an exchange: the last lane to arrive does all of it, with vectors of the host.
#pragma once
#include "lanes.h"

template <int M, int N> struct ly_tile {
  static_assert(M % 16 == 0 && N % 8 == 0, "ly_tile<M, N>: M is a multiple of 16, N of 8");
  static constexpr int EACH = M * N / 32;
  float e[EACH];
};

namespace ly {
typedef float Float8 __attribute__((vector_size(32), aligned(16)));

LY_RUNTIME void widen(float *out, const half *in, int count) {
  int i = 0;
#ifdef __F16C__  // the builtin: immintrin.h would double a kernel's compile time
  typedef short Short8 __attribute__((vector_size(16)));
  for (; i + 8 <= count; i += 8) {
    Short8 line;
    memcpy(&line, in + i, sizeof line);
    auto wide = __builtin_ia32_vcvtph2ps256(line);
    memcpy(out + i, &wide, sizeof wide);
  }
#endif
  for (; i < count; ++i) out[i] = float(in[i]);
}

// tile [M, N] += a [M, K] b [K, N], all of floats, rows without gaps. Eight rows by eight columns at a time stay in
// registers.
template <int M, int N, int K> LY_RUNTIME void multiply(float *tile, const float *a, const float *b) {
  for (int row = 0; row < M; row += 8) {
    for (int column = 0; column < N; column += 8) {
      Float8 sum[8];
      for (int i = 0; i < 8; ++i) memcpy(&sum[i], tile + (row + i) * N + column, sizeof sum[i]);
      for (int k = 0; k < K; ++k) {
        Float8 line;
        memcpy(&line, b + k * N + column, sizeof line);
        for (int i = 0; i < 8; ++i) sum[i] += a[(row + i) * K + k] * line;
      }
      for (int i = 0; i < 8; ++i) memcpy(tile + (row + i) * N + column, &sum[i], sizeof sum[i]);
    }
  }
}

// A part of the group's scratch memory, from the float FIRST on.
template <int FIRST, int COUNT> LY_RUNTIME float *scratch() {
  static_assert((FIRST + COUNT) * sizeof(float) <= SCRATCH_BYTES, "a tile too large for the simulator's scratch memory");
  return reinterpret_cast<float *>(G->scratch) + FIRST;
}

// Takes all lanes' parts of a tile together, and gives them back.
template <int M, int N> LY_RUNTIME void gather(float *whole, ly_tile<M, N> *const *parts) {
  for (int lane = 0; lane < 32; ++lane) memcpy(whole + lane * ly_tile<M, N>::EACH, parts[lane]->e, sizeof parts[lane]->e);
}
template <int M, int N> LY_RUNTIME void scatter(ly_tile<M, N> *const *parts, const float *whole) {
  for (int lane = 0; lane < 32; ++lane) memcpy(parts[lane]->e, whole + lane * ly_tile<M, N>::EACH, sizeof parts[lane]->e);
}

LY_RUNTIME void check_rows(const half *at, int rows, int columns, uint ld, const char *file, int line) {
#ifdef LY_CHECKED
  if (ld % 8 || reinterpret_cast<uintptr_t>(at) % 16) {
    fault("%s:%d: a tile at %p with rows of %u values: expected 16-byte alignment and rows of a multiple of 8", file, line,
          static_cast<const void *>(at), ld);
  }
  for (int row = 0; row < rows; ++row) touch_simdgroup(at + row * ld, columns * sizeof(half), false, file, line);
#else
  (void)at, (void)rows, (void)columns, (void)ld, (void)file, (void)line;
#endif
}

// tile += a b, for the whole simdgroup. `b` is [N, K] if it is TURNED, else [K, N].
template <int K, bool TURNED, int M, int N>
LY_RUNTIME void multiply_tiles(ly_tile<M, N> *const *parts, const half *a, uint lda, const half *b, uint ldb) {
  float *whole = scratch<0, M * N>();
  float *wide_a = scratch<M * N, M * K>();
  float *wide_b = scratch<M * N + M * K, K * N>();
  for (int row = 0; row < M; ++row) widen(wide_a + row * K, a + row * lda, K);
  if (TURNED) {
    for (int row = 0; row < N; ++row) {
      float line[K];
      widen(line, b + row * ldb, K);
      for (int k = 0; k < K; ++k) wide_b[k * N + row] = line[k];
    }
  } else {
    for (int k = 0; k < K; ++k) widen(wide_b + k * N, b + k * ldb, N);
  }
  gather<M, N>(whole, parts);
  multiply<M, N, K>(whole, wide_a, wide_b);
  scatter<M, N>(parts, whole);
}
}  // namespace ly

template <int M, int N> LY_RUNTIME void ly_tile_zero(ly_tile<M, N> &tile) {
  for (float &value : tile.e) value = 0.0f;
}

template <int K, int M, int N>
LY_RUNTIME void ly_tile_mma(ly_tile<M, N> &tile, const half *a, uint lda, const half *b, uint ldb, LY_SITE) {
  static_assert(K % 16 == 0, "ly_tile_mma<K>: K is a multiple of 16");
  auto finish = [=](ly_tile<M, N> **parts) {
    ly::check_rows(a, M, K, lda, LY_PASS);
    ly::check_rows(b, N, K, ldb, LY_PASS);
    ly::multiply_tiles<K, true, M, N>(parts, a, lda, b, ldb);
  };
  ly::exchange(&tile, finish, LY_PASS);
}

template <int K, int M, int N>
LY_RUNTIME void ly_tile_mma_kn(ly_tile<M, N> &tile, const half *a, uint lda, const half *b, uint ldb, LY_SITE) {
  static_assert(K % 16 == 0, "ly_tile_mma_kn<K>: K is a multiple of 16");
  auto finish = [=](ly_tile<M, N> **parts) {
    ly::check_rows(a, M, K, lda, LY_PASS);
    ly::check_rows(b, K, N, ldb, LY_PASS);
    ly::multiply_tiles<K, false, M, N>(parts, a, lda, b, ldb);
  };
  ly::exchange(&tile, finish, LY_PASS);
}

namespace ly {
// One lane's part of a product from registers.
struct Fragments {
  float *c;
  uint a[4];
  uint b[2];
};

// Two halves of a word, the first in the low half.
LY_RUNTIME void widen_pair(float *first, float *second, uint word) {
  *first = float(bits<half>(ushort(word)));
  *second = float(bits<half>(ushort(word >> 16)));
}

LY_RUNTIME uint pair_of(half first, half second) { return uint(bits<ushort>(first)) | uint(bits<ushort>(second)) << 16; }

// All lanes' c [16, N] += their a [16, 16] times `b` [16, N], as floats.
template <int N> LY_RUNTIME void multiply_fragments(Fragments *const *parts, const float *b) {
  float *a = scratch<0, 16 * 16>();
  float *c = scratch<16 * 16, 16 * N>();
  // Where element `i` of a lane's part of c is.
  auto place = [](int lane, int i) { return (lane / 4 + i % 4 / 2 * 8) * N + i / 4 * 8 + 2 * (lane % 4) + i % 2; };
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      float *at = a + (lane / 4 + i % 2 * 8) * 16 + 2 * (lane % 4) + i / 2 * 8;
      widen_pair(at, at + 1, parts[lane]->a[i]);
    }
    for (int i = 0; i < N / 2; ++i) c[place(lane, i)] = parts[lane]->c[i];
  }
  multiply<16, N, 16>(c, a, b);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < N / 2; ++i) parts[lane]->c[i] = c[place(lane, i)];
}

LY_RUNTIME void multiply_registers(Fragments *const *parts) {
  float b[16 * 8];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 2; ++i) {
      float *at = b + (2 * (lane % 4) + 8 * i) * 8 + lane / 4;
      widen_pair(at, at + 8, parts[lane]->b[i]);
    }
  multiply_fragments<8>(parts, b);
}
}  // namespace ly

LY_RUNTIME void ly_mma(float *c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1, LY_SITE) {
  ly::Fragments part = {c, {a0, a1, a2, a3}, {b0, b1}};
  ly::exchange(&part, [](ly::Fragments **parts) { ly::multiply_registers(parts); }, LY_PASS);
}

namespace ly {
struct Matrices {
  uint *m;
  const half *row;
};

LY_RUNTIME void load_matrices(Matrices *const *parts, bool transposed, const char *file, int line) {
  for (int lane = 0; lane < 32; ++lane) check_rows(parts[lane]->row, 1, 8, 8, file, line);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      int g = lane / 4, t = lane % 4;
      half first = transposed ? parts[8 * i + 2 * t]->row[g] : parts[8 * i + g]->row[2 * t];
      half second = transposed ? parts[8 * i + 2 * t + 1]->row[g] : parts[8 * i + g]->row[2 * t + 1];
      parts[lane]->m[i] = pair_of(first, second);
    }
}
}  // namespace ly

LY_RUNTIME void ly_load_matrices(uint (&m)[4], const half *row, LY_SITE) {
  ly::Matrices part = {m, row};
  auto finish = [=](ly::Matrices **parts) { ly::load_matrices(parts, false, LY_PASS); };
  ly::exchange(&part, finish, LY_PASS);
}
LY_RUNTIME void ly_load_transposed(uint (&m)[4], const half *row, LY_SITE) {
  ly::Matrices part = {m, row};
  auto finish = [=](ly::Matrices **parts) { ly::load_matrices(parts, true, LY_PASS); };
  ly::exchange(&part, finish, LY_PASS);
}

// Rows of 64 halves, 16-byte parts of row r at place part ^ (r % 8), as the hardware wants them.
template <uint N> struct ly_swizzled {
  alignas(16) half at[N * 64];
};
template <uint N> LY_FN half *ly_swizzled_at(ly_swizzled<N> &tile, uint row, uint part) {
  return tile.at + row * 64 + (part ^ (row & 7)) * 8;
}
LY_RUNTIME void ly_wgmma_see() {}
LY_RUNTIME void ly_wgmma_begin() {}
LY_RUNTIME void ly_wgmma_commit() {}
LY_RUNTIME void ly_wgmma_before_last() {}
template <uint N> LY_RUNTIME void ly_wgmma_before_last(float *) {}
template <uint N> LY_RUNTIME void ly_wgmma_all(float *) {}
template <uint N> LY_RUNTIME void ly_wgmma_end(float *) {}

namespace ly {
// The other operand: inputs 16 * step .. of N rows.
template <int N> LY_RUNTIME void multiply_swizzled(Fragments *const *parts, const half *rows, uint step) {
  float *b = scratch<16 * 16 + 16 * N, 16 * N>();
  for (int row = 0; row < N; ++row)
    for (int k = 0; k < 16; ++k) {
      uint part = (step * 16 + k) / 8;
      b[k * N + row] = float(rows[row * 64 + (part ^ (row & 7)) * 8 + k % 8]);
    }
  multiply_fragments<N>(parts, b);
}
}  // namespace ly

template <uint N>
LY_RUNTIME void ly_wgmma(float *c, uint a0, uint a1, uint a2, uint a3, const ly_swizzled<N> &tile, uint step, LY_SITE) {
  ly::Fragments part = {c, {a0, a1, a2, a3}, {0, 0}};
  const half *b = tile.at;
  auto finish = [=](ly::Fragments **parts) {
    ly::check_rows(b, int(N), 64, 64, LY_PASS);
    ly::multiply_swizzled<int(N)>(parts, b, step);
  };
  ly::exchange(&part, finish, LY_PASS);
}

namespace ly {
// Inputs 16 * step .. of row `row`: two parts of sixteen bytes.
LY_RUNTIME void check_step(const half *rows, int row, uint step, const char *file, int line) {
  for (uint part = 2 * step; part < 2 * step + 2; ++part) check_rows(rows + row * 64 + (part ^ (row & 7)) * 8, 1, 8, 8, file, line);
}
}  // namespace ly

// The simdgroup's sixteen rows of the 64 from `first` on become the first operand, as if its lanes had them.
template <uint N, uint M>
LY_RUNTIME void ly_wgmma_shared(float *c, const ly_swizzled<M> &rows_a, uint first, const ly_swizzled<N> &rows_b, uint step, bool onto,
                                LY_SITE) {
  ly::Fragments part = {c, {0, 0, 0, 0}, {0, 0}};
  uint row0 = first + ly::G->simdgroup % 4 * 16;
  const half *a = rows_a.at, *b = rows_b.at;
  auto finish = [=](ly::Fragments **parts) {
    for (uint row = row0; row < row0 + 16; ++row) ly::check_step(a, int(row), step, LY_PASS);
    for (uint row = 0; row < N; ++row) ly::check_step(b, int(row), step, LY_PASS);
    for (uint lane = 0; lane < 32; ++lane) {
      for (uint i = 0; i < 4; ++i) {
        uint row = row0 + lane / 4 + i % 2 * 8, in = step * 2 + i / 2;
        memcpy(&parts[lane]->a[i], a + row * 64 + (in ^ (row & 7)) * 8 + 2 * (lane % 4), sizeof(uint));
      }
      for (uint i = 0; i < N / 2 && !onto; ++i) parts[lane]->c[i] = 0.0f;
    }
    ly::multiply_swizzled<int(N)>(parts, b, step);
  };
  ly::exchange(&part, finish, LY_PASS);
}

// The other operand: rows 16 * step .. are the inputs, 64 of the N columns in each block.
template <uint N, uint ROWS>
LY_RUNTIME void ly_wgmma_across(float *c, uint a0, uint a1, uint a2, uint a3, const ly_swizzled<ROWS> *blocks, uint step, LY_SITE) {
  ly::Fragments part = {c, {a0, a1, a2, a3}, {0, 0}};
  auto finish = [=](ly::Fragments **parts) {
    float *b = ly::scratch<16 * 16 + 16 * int(N), 16 * int(N)>();
    for (uint block = 0; block < N / 64; ++block) {
      const half *rows = blocks[block].at + step * 16 * 64;
      ly::check_rows(rows, 16, 64, 64, LY_PASS);
      for (uint row = 0; row < 16; ++row)
        for (uint part = 0; part < 8; ++part)
          ly::widen(b + row * N + block * 64 + part * 8, rows + row * 64 + (part ^ (row & 7)) * 8, 8);
    }
    ly::multiply_fragments<int(N)>(parts, b);
  };
  ly::exchange(&part, finish, LY_PASS);
}

// Two codes, in bits 0 .. 3 and 16 .. 19, as halves code * scale + bias, rounded once.
LY_RUNTIME uint ly_dequantise2(uint codes, uint scale, uint bias) {
  float scales[2], biases[2];
  ly::widen_pair(scales, scales + 1, scale);
  ly::widen_pair(biases, biases + 1, bias);
  half low(float(codes & 15) * scales[0] + biases[0]), high(float(codes >> 16 & 15) * scales[1] + biases[1]);
  return ly::pair_of(low, high);
}

// Byte i of the result is byte `pick >> 4 i & 7` of both words together, those of `high` from 4 on.
LY_RUNTIME uint ly_pick_bytes(uint low, uint high, uint pick) {
  uint picked = 0;
  for (uint i = 0; i < 4; ++i) {
    uint from = pick >> 4 * i & 7;
    picked |= ((from < 4 ? low : high) >> 8 * (from % 4) & 0xff) << 8 * i;
  }
  return picked;
}
// The two codes of byte AT of a word as halves code * scale + bias, rounded once; of the upper one everything is a sixteenth of
// sixteen times as much.
LY_RUNTIME uint ly_byte_scale(uint scale) {
  float scales[2];
  ly::widen_pair(scales, scales + 1, scale);
  return ly::pair_of(half(scales[0]), half(scales[1] / 16.0f));
}
template <uint AT> LY_RUNTIME uint ly_dequantise_byte(uint word, uint scale, uint bias) {
  float scales[2], biases[2];
  ly::widen_pair(scales, scales + 1, scale);
  ly::widen_pair(biases, biases + 1, bias);
  uint two = word >> 8 * AT & 0xff;
  half low(float(two & 15) * scales[0] + biases[0]), high(float(two & 0xf0) * scales[1] + biases[1]);
  return ly::pair_of(low, high);
}

// Every lane of the simdgroup must come here, as on devices where a lane's elements depend on the others'.
template <int M, int N> inline void ly_tile_scale_rows(ly_tile<M, N> &tile, const float *scale) {
  uint first = ly::lane() * ly_tile<M, N>::EACH;
  for (uint i = 0; i < ly_tile<M, N>::EACH; ++i) tile.e[i] *= scale[(first + i) / N];
}

template <int M, int N> inline void ly_tile_store(const ly_tile<M, N> &tile, float *out, uint ld) {
  uint first = ly::lane() * ly_tile<M, N>::EACH;
  for (uint i = 0; i < ly_tile<M, N>::EACH; ++i) out[(first + i) / N * ld + (first + i) % N] = tile.e[i];
}
