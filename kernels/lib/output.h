// output: what the kernels of the mixer's output projection share.
#pragma once

struct OutputArgs { uint cols, group_shift, batch, x_stride, rows; };   // inputs; see lib/quantised.h; rows of x; outputs
