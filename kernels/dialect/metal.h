// The kernel language over Metal: language version 3.1 (macOS 14) and up, every Apple chip from M1.
//
// The host defines LY_TENSOR_OPS where tiles are to be multiplied by Metal 4's tensor operations (Apple10: M5, macOS 26.1);
// without it they are simdgroup matrices. tile_check.metal beside this file is what the host runs before it trusts either.
#pragma once
#include <metal_stdlib>
#ifdef LY_TENSOR_OPS
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif
using namespace metal;

#define LY_KERNEL(entry, ...) template [[host_name(#entry)]] kernel decltype(__VA_ARGS__) __VA_ARGS__;

inline uint ly_pack2(float low, float high) { return as_type<uint>(half2(half(low), half(high))); }

// Launches that depend on each other never overlap here.
#define ly_wait_previous(...)

// Copies are done when the call returns: Metal has no asynchronous ones, and a threadgroup's other simdgroups hide the wait.
inline void ly_copy16(threadgroup void *to, device const void *from) {
  *(threadgroup uint4 *)to = *(device const uint4 *)from;
}
inline void ly_copy_commit() {}
template <uint N> inline void ly_copy_wait() {}

#ifdef LY_TENSOR_OPS

// Tiles on tensor operations. How a tile's values lie in the lanes is the device's affair: part i of a lane is element i of
// the operation's destination, which says where that is. It is the same for both operand orders and for any K.
template <uint M, uint N> struct ly_tile {
  static_assert(M % 16 == 0 && N % 8 == 0, "a tile is M x N, M a multiple of 16 and N of 8");
  float part[M * N / 32];
};

namespace ly {
using Operand = tensor<threadgroup half, dextents<int, 2>, tensor_inline>;

// Tensors count columns first.
inline Operand operand(threadgroup const half *values, uint rows, uint columns, uint ld) {
  return Operand((threadgroup half *)values, dextents<int, 2>(int(columns), int(rows)), array<int, 2>{1, int(ld)});
}

// K_N: the right operand is [K, N], else [N, K].
template <uint M, uint N, uint K, bool K_N> struct TileMultiply {
  static_assert(K % 16 == 0, "K is a multiple of 16");
  static constexpr constant auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      int(M), int(N), int(K), false, !K_N, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  using Operation = mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup>;
};

template <uint K, bool K_N, uint M, uint N>
inline void tile_multiply(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  typename TileMultiply<M, N, K, K_N>::Operation operation;
  Operand left = operand(a, M, K, lda);
  Operand right = K_N ? operand(b, K, N, ldb) : operand(b, N, K, ldb);
  auto sum = operation.template get_destination_cooperative_tensor<Operand, Operand, float>();
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) sum[i] = tile.part[i];
  operation.run(left, right, sum);
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) tile.part[i] = sum[i];
}
} // namespace ly

template <uint M, uint N> inline void ly_tile_zero(thread ly_tile<M, N> &tile) {
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) tile.part[i] = 0.0f;
}
template <uint K, uint M, uint N>
inline void ly_tile_mma(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  ly::tile_multiply<K, false>(tile, a, lda, b, ldb);
}
template <uint K, uint M, uint N>
inline void ly_tile_mma_kn(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  ly::tile_multiply<K, true>(tile, a, lda, b, ldb);
}
template <uint M, uint N> inline void ly_tile_scale_rows(thread ly_tile<M, N> &tile, threadgroup const float *scale) {
  typename ly::TileMultiply<M, N, 16, false>::Operation operation;
  auto places = operation.template get_destination_cooperative_tensor<ly::Operand, ly::Operand, float>();
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) {
    auto place = places.get_multidimensional_index(i);
    if (places.is_valid_element(i)) tile.part[i] *= scale[place[1]];
  }
}
template <uint M, uint N> inline void ly_tile_store(thread const ly_tile<M, N> &tile, threadgroup float *out, uint ld) {
  typename ly::TileMultiply<M, N, 16, false>::Operation operation;
  auto places = operation.template get_destination_cooperative_tensor<ly::Operand, ly::Operand, float>();
#pragma unroll
  for (uint i = 0; i < M * N / 32; ++i) {
    auto place = places.get_multidimensional_index(i);
    if (places.is_valid_element(i)) out[uint(place[1]) * ld + uint(place[0])] = tile.part[i];
  }
}

#else

// Tiles as simdgroup matrices of 8 x 8.
template <uint M, uint N> struct ly_tile {
  static_assert(M % 16 == 0 && N % 8 == 0, "a tile is M x N, M a multiple of 16 and N of 8");
  simdgroup_matrix<float, 8, 8> part[M / 8][N / 8];
};

namespace ly {
// Eight inputs at a time: M / 8 parts of the left operand stay in registers for all parts of the right one.
template <uint K, bool K_N, uint M, uint N>
inline void tile_multiply(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  static_assert(K % 16 == 0, "K is a multiple of 16");
#pragma unroll
  for (uint k = 0; k < K; k += 8) {
    simdgroup_matrix<half, 8, 8> left[M / 8];
#pragma unroll
    for (uint i = 0; i < M / 8; ++i) simdgroup_load(left[i], a + i * 8 * lda + k, lda);
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) {
      simdgroup_matrix<half, 8, 8> right;
      if (K_N) simdgroup_load(right, b + k * ldb + j * 8, ldb);
      else simdgroup_load(right, b + j * 8 * ldb + k, ldb, ulong2(0, 0), true);
#pragma unroll
      for (uint i = 0; i < M / 8; ++i) simdgroup_multiply_accumulate(tile.part[i][j], left[i], right, tile.part[i][j]);
    }
  }
}

// The row of an 8 x 8 matrix of which this lane holds two neighbouring values. No function can ask for its lane, so lanes
// count the ones before them.
inline uint part_row() {
  uint lane = simd_prefix_exclusive_sum(1u);
  return (lane / 4 & 4u) + lane / 2 % 4;
}
} // namespace ly

template <uint M, uint N> inline void ly_tile_zero(thread ly_tile<M, N> &tile) {
#pragma unroll
  for (uint i = 0; i < M / 8; ++i)
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) tile.part[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}
template <uint K, uint M, uint N>
inline void ly_tile_mma(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  ly::tile_multiply<K, false>(tile, a, lda, b, ldb);
}
template <uint K, uint M, uint N>
inline void ly_tile_mma_kn(thread ly_tile<M, N> &tile, threadgroup const half *a, uint lda, threadgroup const half *b, uint ldb) {
  ly::tile_multiply<K, true>(tile, a, lda, b, ldb);
}
template <uint M, uint N> inline void ly_tile_scale_rows(thread ly_tile<M, N> &tile, threadgroup const float *scale) {
  uint row = ly::part_row();
#pragma unroll
  for (uint i = 0; i < M / 8; ++i) {
    float factor = scale[i * 8 + row];
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) {
      tile.part[i][j].thread_elements()[0] *= factor;
      tile.part[i][j].thread_elements()[1] *= factor;
    }
  }
}
template <uint M, uint N> inline void ly_tile_store(thread const ly_tile<M, N> &tile, threadgroup float *out, uint ld) {
#pragma unroll
  for (uint i = 0; i < M / 8; ++i)
#pragma unroll
    for (uint j = 0; j < N / 8; ++j) simdgroup_store(tile.part[i][j], out + i * 8 * ld + j * 8, ld);
}

#endif
