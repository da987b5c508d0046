// matrices: up to four weight matrices side by side, as the kernels of one launch see them.
#pragma once

struct ProjectArgs {
  uint cols, group_shift, batch, x_stride, out_stride;   // inputs; see lib/quantised.h; rows of x; row strides
  uint rows0, rows1, rows2, rows3;             // outputs of each matrix, 0 for one that is not there
  uint parts;                                  // see lib/chain.h
  float eps;
};

struct ProjectMatmulArgs {
  uint cols, group_shift, batch, x_stride, out_stride;
  uint rows0, rows1, rows2, rows3;
};

// A tile of output rows in one of four matrices.
struct MatrixTile {
  uint which;    // of the four
  uint tile;     // within it
  uint rows;     // that it has
  uint column;   // of the launch's output, where it starts
};

// Tile `tile` of all: each matrix has its own last tile, full or not. Matrices that are not there have no rows.
inline MatrixTile matrix_tile(uint tile, uint tile_rows, uint rows0, uint rows1, uint rows2, uint rows3) {
  uint rows[4] = {rows0, rows1, rows2, rows3};
  MatrixTile at = {0u, tile, rows0, 0u};
  for (uint next = 1; next < 4; ++next) {
    bool behind = at.which == next - 1 && at.tile * tile_rows >= at.rows;
    if (behind) {
      at.tile -= (at.rows + tile_rows - 1) / tile_rows;
      at.column += at.rows;
      at.rows = rows[next];
      at.which = next;
    }
  }
  return at;
}
