// delta: what the kernels of the Gated DeltaNet mixer share.
//
// The state of a slot is, per DeltaNet layer: in `ring` the last conv_width raw rows before the convolution, the row of
// position p at p % conv_width; in `memory` the matrix of each value head, [dim_v, dim_k] f32.
#pragma once
constant uint DIM_V_MAX = 256;

struct DeltaArgs {
  uint layer, layers;   // of this layer among the DeltaNet layers; how many there are
  uint heads_k, heads_v, dim_k, dim_v, conv_width, stride, mixed_stride;
  uint narrow;   // how mixed is stored, see lib/operand.h
  uint row_count;
  float eps;
  uint halves;   // of mixed, see lib/halves.h
};

// beta: how much of the new value is written.
inline float write_strength(float b) { return 1.0f / (1.0f + exp(-b)); }

// exp(-rate * softplus(a + dt_bias)).
inline float state_decay(float a, float rate, float dt_bias) {
  float x = a + dt_bias;
  float softplus = x > 20.0f ? x : log(1.0f + exp(x));
  return exp(-rate * softplus);
}
