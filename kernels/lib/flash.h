// flash: what the kernels of attention over many rows share.
#pragma once

struct FlashArgs { uint layer, layers, heads_q, heads_kv, stride, mixed_stride; float scale; };
