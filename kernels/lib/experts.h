// experts: what the kernels of gate and up of a few rows share.
#pragma once

struct ExpertArgs {
  uint cols, group_shift, per_token, experts;   // inputs; see lib/quantised.h
  uint width, shared_width;                     // outputs of an expert, of the shared one
  uint gate_stride, gate_first, up_stride, up_first;   // expert e is rows first + e * stride ..
  uint parts;                                   // see lib/chain.h
  float eps;
  uint halves;                                  // of what is made, see lib/halves.h
};
