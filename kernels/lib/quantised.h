// quantised: weight matrices as the checkpoint stores them.
//
// BITS is 4 or 8 for codes with a scale and a bias per group of consecutive inputs, w = scale * code + bias, low bits
// first; 16 for plain bfloat, without scales. A unit is eight consecutive inputs of one row: BITS / 4 words. Groups are
// 2^group_shift units (32, 64 or 128 inputs), and rows are whole units.
#pragma once

// The eight codes of a unit as floats; for 16 bits the values themselves.
template <uint BITS> inline void unit_codes(device const uint *words, thread float *codes) {
  if (BITS == 4) {
    uint word = words[0];
    for (uint i = 0; i < 8; ++i) codes[i] = float((word >> (4 * i)) & 15u);
  } else if (BITS == 8) {
    for (uint i = 0; i < 8; ++i) codes[i] = float((words[i / 4] >> (8 * (i % 4))) & 255u);
  } else {
    for (uint i = 0; i < 4; ++i) {
      uint word = words[i];
      codes[2 * i] = as_type<float>(word << 16);
      codes[2 * i + 1] = as_type<float>(word & 0xffff0000u);
    }
  }
}

// Half a tile row of weights on its way from memory to the tile: 32 inputs.
template <uint BITS> struct WeightRun {
  uint words[BITS];
  float scale;
  float bias;
};

// Reads inputs k .. k + 32 of a row; what is beyond the row's end, or of a row outside the matrix, becomes zero.
template <uint BITS>
inline void run_load(thread WeightRun<BITS> &run, device const uint *codes, device const bfloat *scales, device const bfloat *biases,
                     uint row, bool inside, uint k, uint cols, uint group_shift) {
  uint units = cols / 8, unit = k / 8;
  run.scale = 0.0f;
  run.bias = 0.0f;
  for (uint i = 0; i < BITS; ++i) run.words[i] = 0u;
  if (!inside || k >= cols) return;
  device const uint *from = codes + (row * units + unit) * (BITS / 4);
  if (cols % 32 == 0) {
    for (uint i = 0; i < BITS / 4; ++i) {
      uint4 four = ((device const uint4 *)from)[i];
      run.words[4 * i] = four.x;
      run.words[4 * i + 1] = four.y;
      run.words[4 * i + 2] = four.z;
      run.words[4 * i + 3] = four.w;
    }
  } else {
    for (uint i = 0; i < BITS; ++i)
      if (unit + i / (BITS / 4) < units) run.words[i] = from[i];
  }
  if (BITS < 16) {
    uint at = row * (units >> group_shift) + (unit >> group_shift);
    run.scale = float(scales[at]);
    run.bias = float(biases[at]);
  }
}

// Writes the run's 32 weights, rounded to half, to a tile row: 16-byte aligned.
template <uint BITS> inline void run_store(thread const WeightRun<BITS> &run, threadgroup half *to) {
  threadgroup uint4 *out = (threadgroup uint4 *)to;
  for (uint i = 0; i < 4; ++i) {
    uint pair[4];
    for (uint j = 0; j < 4; ++j) {
      uint at = i * 8 + j * 2;
      if (BITS == 16) {
        uint word = run.words[at / 2];
        pair[j] = ly_pack2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u));
      } else {
        uint word = run.words[at / (32 / BITS)], shift = at % (32 / BITS) * BITS, mask = (1u << BITS) - 1u;
        float low = float((word >> shift) & mask), high = float((word >> (shift + BITS)) & mask);
        pair[j] = ly_pack2(run.scale * low + run.bias, run.scale * high + run.bias);
      }
    }
    out[i] = uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}
