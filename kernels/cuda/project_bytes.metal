#include "dialect/metal.h"
#include "lib/matrices.h"

// project_bytes: project_matmul for 8 bits, on tensor cores from registers.
// Math     out[r] = [W0 | W1 | W2 | W3] x[r]
// Layout   as project_matmul; cols a multiple of 64.
// Work     a threadgroup makes 32 rows by 64 outputs of one matrix, a simdgroup sixteen of the outputs. Codes and activations
//          come through threadgroup memory two steps of 64 inputs ahead. Of a step lane 4 g + t takes inputs 16 t .. 16 t + 15
//          of its rows, four a product: both operands in the same order, so that codes are one load and activations two.
//          Where 64 rows a tile keep the device busy, those of project_matmul are faster.
//          Grid: (output tiles of all matrices, row tiles).
// Numerics weights rounded to f16, f32 sums. Bound by activations from the second level.
constant uint BYTES_ROWS = 32;      // of a tile; policy.rs says the same
constant uint BYTES_OUTPUTS = 64;
constant uint BYTES_STAGES = 3;
constant uint BYTES_LD = 72;        // from row to row of activations, in halves: without conflicts
constant uint BYTES_CODES_LD = 20;  // of codes, in words

// Two of four codes in a word, scaled and rounded. A float of 2^23 and more has its unit in the last bit.
inline uint bytes_pair(uint word, uint first, float scale, float bias) {
  float low = as_type<float>(0x4b000000u | (word >> (8 * first) & 0xffu)) - 8388608.0f;
  float high = as_type<float>(0x4b000000u | (word >> (8 * first + 8) & 0xffu)) - 8388608.0f;
  return ly_pack2(fma(scale, low, bias), fma(scale, high, bias));
}

kernel void project_bytes(device const uint *codes0 [[buffer(0)]], device const bfloat *scales0 [[buffer(1)]],
                          device const bfloat *biases0 [[buffer(2)]], device const uint *codes1 [[buffer(3)]],
                          device const bfloat *scales1 [[buffer(4)]], device const bfloat *biases1 [[buffer(5)]],
                          device const uint *codes2 [[buffer(6)]], device const bfloat *scales2 [[buffer(7)]],
                          device const bfloat *biases2 [[buffer(8)]], device const uint *codes3 [[buffer(9)]],
                          device const bfloat *scales3 [[buffer(10)]], device const bfloat *biases3 [[buffer(11)]],
                          device const half *x [[buffer(12)]], device float *out [[buffer(13)]],
                          constant ProjectMatmulArgs &args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup_at [[simdgroup_index_in_threadgroup]]) {
  ly_resident<128, 4>();
  threadgroup half activations[BYTES_STAGES * BYTES_ROWS * BYTES_LD];
  threadgroup uint weights[BYTES_STAGES * BYTES_OUTPUTS * BYTES_CODES_LD];
  MatrixTile matrix = matrix_tile(group.x, BYTES_OUTPUTS, args.rows0, args.rows1, args.rows2, args.rows3);
  device const uint *codes = matrix.which == 0 ? codes0 : matrix.which == 1 ? codes1 : matrix.which == 2 ? codes2 : codes3;
  device const bfloat *scales = matrix.which == 0 ? scales0 : matrix.which == 1 ? scales1 : matrix.which == 2 ? scales2 : scales3;
  device const bfloat *biases = matrix.which == 0 ? biases0 : matrix.which == 1 ? biases1 : matrix.which == 2 ? biases2 : biases3;
  uint first = matrix.tile * BYTES_OUTPUTS, row0 = group.y * BYTES_ROWS, t = lane % 4, steps = args.cols / 64;
  // Rows behind the last are that one again, and what becomes of them is not stored.
  uint upper = first + simdgroup_at * 16 + lane / 4, lower = upper + 8;
  uint groups = (args.cols / 8) >> args.group_shift;
  uint upper_groups = min(upper, matrix.rows - 1) * groups, lower_groups = min(lower, matrix.rows - 1) * groups;
  bool works = first + simdgroup_at * 16 < matrix.rows;
  float sums[BYTES_ROWS / 8][4];
#pragma unroll
  for (uint n = 0; n < BYTES_ROWS / 8; ++n)
    for (uint c = 0; c < 4; ++c) sums[n][c] = 0.0f;
  for (uint step = 0; step < steps + BYTES_STAGES - 1; ++step) {
    // `step` sets out, and the one of BYTES_STAGES - 1 before has come.
    if (step >= BYTES_STAGES - 1) {
      ly_copy_wait<BYTES_STAGES - 2>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (step < steps) {
      threadgroup half *x_to = activations + step % BYTES_STAGES * (BYTES_ROWS * BYTES_LD);
      threadgroup uint *codes_to = weights + step % BYTES_STAGES * (BYTES_OUTPUTS * BYTES_CODES_LD);
      uint part = thread_at % 8, quarter = thread_at % 4;
#pragma unroll
      for (uint i = 0; i < BYTES_ROWS / 16; ++i) {
        uint row = thread_at / 8 + i * 16;
        ly_copy16(x_to + row * BYTES_LD + part * 8, x + min(row0 + row, args.batch - 1) * args.x_stride + step * 64 + part * 8);
      }
#pragma unroll
      for (uint i = 0; i < BYTES_OUTPUTS / 32; ++i) {
        uint row = thread_at / 4 + i * 32;
        ly_copy16(codes_to + row * BYTES_CODES_LD + quarter * 4,
                  codes + min(first + row, matrix.rows - 1) * (args.cols / 4) + step * 16 + quarter * 4);
      }
    }
    ly_copy_commit();
    if (step < BYTES_STAGES - 1 || !works) continue;
    uint now = step - (BYTES_STAGES - 1), stage = now % BYTES_STAGES, at = (now * 8 + 2 * t) >> args.group_shift;
    float upper_scale = float(scales[upper_groups + at]), upper_bias = float(biases[upper_groups + at]);
    float lower_scale = float(scales[lower_groups + at]), lower_bias = float(biases[lower_groups + at]);
    threadgroup const uint *codes_at = weights + (stage * BYTES_OUTPUTS + simdgroup_at * 16 + lane / 4) * BYTES_CODES_LD + t * 4;
    uint4 upper_codes = *(threadgroup const uint4 *)codes_at;
    uint4 lower_codes = *(threadgroup const uint4 *)(codes_at + 8 * BYTES_CODES_LD);
    uint a[4][4];
#pragma unroll
    for (uint i = 0; i < 4; ++i) {
      a[i][0] = bytes_pair(upper_codes[i], 0, upper_scale, upper_bias);
      a[i][1] = bytes_pair(lower_codes[i], 0, lower_scale, lower_bias);
      a[i][2] = bytes_pair(upper_codes[i], 2, upper_scale, upper_bias);
      a[i][3] = bytes_pair(lower_codes[i], 2, lower_scale, lower_bias);
    }
    threadgroup const half *x_at = activations + (stage * BYTES_ROWS + lane / 4) * BYTES_LD + t * 16;
#pragma unroll
    for (uint h = 0; h < 2; ++h)
      for (uint n = 0; n < BYTES_ROWS / 8; ++n) {
        uint4 b = *(threadgroup const uint4 *)(x_at + n * 8 * BYTES_LD + h * 8);
        ly_mma(sums[n], a[2 * h][0], a[2 * h][1], a[2 * h][2], a[2 * h][3], b.x, b.y);
        ly_mma(sums[n], a[2 * h + 1][0], a[2 * h + 1][1], a[2 * h + 1][2], a[2 * h + 1][3], b.z, b.w);
      }
  }
#pragma unroll
  for (uint n = 0; n < BYTES_ROWS / 8; ++n)
    for (uint c = 0; c < 4; ++c) {
      uint row = row0 + n * 8 + 2 * t + c % 2, output = c < 2 ? upper : lower;
      if (row < args.batch && output < matrix.rows) out[row * args.out_stride + matrix.column + output] = sums[n][c];
    }
}
