#include "dialect/metal.h"

constant uint LD = 40;   // row stride in threadgroup memory

struct TileCheckArgs {
  uint rows;   // of out that are wanted, 32 at most
};

// tile_check: every word for tiles and copies, on numbers so small that all sums are exact.
// Math     out = diag(scale) (a b^T) + a c, then rounded to half by pairs in `packed`.
// Layout   a [32, 32], b [24, 32] and c [32, 24] f16; scale [32]; out [32, 24] f32; packed [32, 12].
// Work     one simdgroup. The host runs it once before it trusts the device's tiles; see crates/lily-gpu/src/backend/metal.
// Numerics whole numbers below 256 go in: f16 holds them, and f32 every sum.
kernel void tile_check(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]],
                       device const half *c [[buffer(2)]], device const float *scale [[buffer(3)]],
                       device float *out [[buffer(4)]], device uint *packed [[buffer(5)]],
                       constant TileCheckArgs &args [[buffer(6)]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half left[32 * LD];
  threadgroup half right[24 * LD];
  threadgroup half across[32 * LD];
  threadgroup float factors[32];
  threadgroup float result[32 * LD];
  for (uint i = lane; i < 32 * 4; i += 32) ly_copy16(left + i / 4 * LD + i % 4 * 8, a + i * 8);
  ly_copy_commit();
  for (uint i = lane; i < 24 * 4; i += 32) ly_copy16(right + i / 4 * LD + i % 4 * 8, b + i * 8);
  for (uint i = lane; i < 32 * 3; i += 32) ly_copy16(across + i / 3 * LD + i % 3 * 8, c + i * 8);
  ly_copy_commit();
  factors[lane] = scale[lane];
  ly_copy_wait<1>();
  ly_copy_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ly_tile<32, 24> tile;
  ly_tile_zero(tile);
  ly_tile_mma<32>(tile, left, LD, right, LD);
  ly_tile_scale_rows(tile, factors);
  ly_tile_mma_kn<32>(tile, left, LD, across, LD);
  ly_tile_store(tile, result, LD);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < args.rows * 24; i += 32) out[i] = result[i / 24 * LD + i % 24];
  for (uint i = lane; i < args.rows * 12; i += 32) {
    uint at = i / 12 * LD + i % 12 * 2;
    packed[i] = ly_pack2(result[at], result[at + 1]);
  }
}
