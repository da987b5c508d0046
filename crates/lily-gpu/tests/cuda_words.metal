// cuda_words: every word of the kernel language once, each result written where the test can compare it.

struct TileArgs { uint lda, ldb, ldo; };
struct CountArgs { uint count; };
struct AddArgs { uint count; float factor; };

// Rows of `columns` values, 16 bytes at a time, into rows of `ld`.
inline void fetch(threadgroup half *to, uint ld, device const half *from, uint rows, uint columns, uint lane) {
  uint pieces = columns / 8;
  for (uint i = lane; i < rows * pieces; i += 32)
    ly_copy16(to + i / pieces * ld + i % pieces * 8, from + i / pieces * columns + i % pieces * 8);
}

// out[r] = 2 r (a b^T)[r], or of a b where KN, as the sum of two equal products. out [M, N].
template <uint M, uint N, uint K, bool KN> kernel void
tile(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]], device float *out [[buffer(2)]],
     constant TileArgs &args [[buffer(3)]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup half tile_a[M * (K + 8)];
  threadgroup half tile_b[KN ? K * (N + 8) : N * (K + 8)];
  threadgroup float tile_out[M * (N + 9)];
  threadgroup float scale[M];
  fetch(tile_a, args.lda, a, M, K, lane);
  ly_copy_commit();
  fetch(tile_b, args.ldb, b, KN ? K : N, KN ? N : K, lane);
  ly_copy_commit();
  for (uint r = lane; r < M; r += 32) scale[r] = float(r);
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile<M, N> sum;
  ly_tile_zero(sum);
  for (uint twice = 0; twice < 2; ++twice) {
    if (KN) ly_tile_mma_kn<K>(sum, tile_a, args.lda, tile_b, args.ldb);
    else ly_tile_mma<K>(sum, tile_a, args.lda, tile_b, args.ldb);
  }
  ly_tile_scale_rows(sum, scale);
  ly_tile_store(sum, tile_out, args.ldo);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < M * N; i += 32) out[i] = tile_out[i / N * args.ldo + i % N];
}
LY_KERNEL(tile_16_8_16, tile<16, 8, 16, false>)
LY_KERNEL(tile_32_24_48, tile<32, 24, 48, false>)
LY_KERNEL(tile_64_32_64, tile<64, 32, 64, false>)
LY_KERNEL(tile_kn_16_8_16, tile<16, 8, 16, true>)
LY_KERNEL(tile_kn_32_24_48, tile<32, 24, 48, true>)
LY_KERNEL(tile_kn_64_32_64, tile<64, 32, 64, true>)

// Row w of each output is word w for 32 lanes.
kernel void simdgroup_words(device const float *x [[buffer(0)]], device const uint *n [[buffer(1)]], device float *floats [[buffer(2)]],
                            device uint *numbers [[buffer(3)]], uint lane [[thread_index_in_simdgroup]]) {
  float v = x[lane];
  uint u = n[lane];
  float2 pair = simd_sum(float2(v, 2.0f * v));
  floats[lane] = simd_sum(v);
  floats[32 + lane] = simd_max(v);
  floats[64 + lane] = simd_min(v);
  floats[96 + lane] = simd_prefix_exclusive_sum(v);
  floats[128 + lane] = simd_shuffle(v, ushort((lane * 7) % 32));
  floats[160 + lane] = simd_shuffle_xor(v, ushort(5));
  floats[192 + lane] = simd_broadcast(v, ushort(9));
  floats[224 + lane] = pair.x + pair.y;
  uint up = simd_shuffle_up(u, ushort(3));
  uint down = simd_shuffle_down(u, ushort(3));
  numbers[lane] = simd_sum(u);
  numbers[32 + lane] = simd_max(u);
  numbers[64 + lane] = simd_min(u);
  numbers[96 + lane] = simd_prefix_exclusive_sum(u);
  numbers[128 + lane] = lane < 3 ? 0u : up;
  numbers[160 + lane] = lane > 28 ? 0u : down;
  numbers[192 + lane] = uint(simd_shuffle_xor(ushort(u), ushort(1)));
}

// Row w of out is function w of x, `count` values each.
kernel void mathematics(device const float *x [[buffer(0)]], device float *out [[buffer(1)]], constant CountArgs &args [[buffer(2)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * 256 + thread_index;
  if (i < args.count) {
    float v = x[i];
    float magnitude = abs(v);
    float4 four = float4(v, 1.0f, 2.0f, 3.0f);
    out[i] = exp(v);
    out[args.count + i] = log(magnitude);
    out[2 * args.count + i] = sqrt(magnitude);
    out[3 * args.count + i] = rsqrt(magnitude);
    out[4 * args.count + i] = 3.0f / v;
    out[5 * args.count + i] = float(bfloat(v));
    out[6 * args.count + i] = float(half(v));
    out[7 * args.count + i] = clamp(v, -1.0f, select(1.0f, 2.0f, v > 10.0f));
    out[8 * args.count + i] = dot(four, float4(2.0f)) + max(four.x, four.y);
  }
}

// Counts the values by their last four bits: in threadgroup memory, then together.
kernel void histogram(device const uint *x [[buffer(0)]], device atomic_uint *counts [[buffer(1)]], constant CountArgs &args [[buffer(2)]],
                      uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                      uint thread_index [[thread_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup atomic_uint part[16];
  if (thread_index < 16) atomic_store_explicit(part + thread_index, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = group.x * simdgroups * 32 + thread_index; i < args.count; i += groups.x * simdgroups * 32)
    atomic_fetch_add_explicit(part + x[i] % 16, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index < 16)
    atomic_fetch_add_explicit(counts + thread_index, atomic_load_explicit(part + thread_index, memory_order_relaxed), memory_order_relaxed);
}

// The codes of the four bytes of a word as 3 code - 5, two a word; then bytes of two words.
kernel void codes(device const uint *x [[buffer(0)]], device uint *out [[buffer(1)]], uint lane [[thread_index_in_threadgroup]]) {
  uint word = x[lane], scale = ly_byte_scale(ly_pack2(3.0f, 3.0f)), bias = ly_pack2(-5.0f, -5.0f);
  out[lane] = ly_dequantise_byte<0>(word, scale, bias);
  out[32 + lane] = ly_dequantise_byte<1>(word, scale, bias);
  out[64 + lane] = ly_dequantise_byte<2>(word, scale, bias);
  out[96 + lane] = ly_dequantise_byte<3>(word, scale, bias);
  out[128 + lane] = ly_pick_bytes(word, x[31 - lane], 0x3715u);
}

// to = a + b * factor
kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]], device float *to [[buffer(2)]],
                constant AddArgs &args [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],
                uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  uint i = group.x * 256 + simdgroup * 32 + lane;
  if (i < args.count) to[i] = fma(b[i], args.factor, a[i]);
}

// x = x * x, in place
kernel void square(device float *x [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * 256 + thread_index;
  x[i] = x[i] * x[i];
}

// Writes where no buffer is.
kernel void stray(device float *x [[buffer(0)]], constant CountArgs &args [[buffer(1)]], uint lane [[thread_index_in_threadgroup]]) {
  x[ulong(args.count) * 1073741824 + lane] = 1.0f;
}
