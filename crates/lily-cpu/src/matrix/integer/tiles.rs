//! Rows of activations as AMX takes them: sixteen rows side by side, group after group.
//!
//! A tile of one group and plane is 1 KiB, `[inputs / 4][rows][4]`: first the inputs with even index, then the others,
//! as the unpacked weights have them. Beside it stand the rows' scales and sums of that group. Tiles are filled from
//! [`Quantised`] once a step, in the order in which the products want their rows; whoever multiplies reads them from
//! start to end.

// Elsewhere nobody makes tiles.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::panel::Line;
use crate::quantise::{GROUP, Quantised};
use crate::team::Cells;

/// Rows of a tile.
pub const TILE: usize = 16;
/// Bytes of a tile of one group and plane.
pub const TILE_BYTES: usize = TILE * GROUP;

/// The tiles of a step. The buffers grow to the largest step seen and stay.
#[derive(Default)]
pub struct Tiles {
    groups: usize,
    planes: usize,
    /// `[tiles, groups, planes, TILE_BYTES]`
    codes: Cells<Line>,
    /// `[tiles, groups, TILE]`
    scales: Cells<f32>,
    sums: Cells<f32>,
}

/// One tile, all groups.
#[derive(Clone, Copy)]
pub struct TileInput {
    /// `[groups, planes, TILE_BYTES]`
    pub codes: *const u8,
    /// `[groups, TILE]`
    pub scales: *const f32,
    pub sums: *const f32,
}

impl TileInput {
    /// The same from a group on.
    pub fn from(self, group: usize, planes: usize) -> TileInput {
        TileInput {
            codes: self.codes.wrapping_add(group * planes * TILE_BYTES),
            scales: self.scales.wrapping_add(group * TILE),
            sums: self.sums.wrapping_add(group * TILE),
        }
    }
}

/// Where a tile is written.
pub struct TileOutput<'t> {
    pub codes: *mut u8,
    pub scales: &'t mut [f32],
    pub sums: &'t mut [f32],
}

impl Tiles {
    /// Makes room for `tiles` tiles of rows of `x`. Contents are unspecified after.
    pub fn reshape(&mut self, tiles: usize, x: &Quantised) {
        (self.groups, self.planes) = (x.cols() / GROUP, x.planes());
        self.codes.grow(tiles * self.lines(), Line([0; 64]));
        self.scales.grow(tiles * self.groups * TILE, 0.0);
        self.sums.grow(tiles * self.groups * TILE, 0.0);
    }

    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Bytes of a tile with all its groups.
    pub fn tile_bytes(&self) -> usize {
        (self.groups * self.planes * TILE_BYTES).max(1)
    }

    /// Cache lines of a tile with all its groups.
    fn lines(&self) -> usize {
        self.groups * self.planes * TILE_BYTES / 64
    }

    /// Fills a tile with up to [`TILE`] rows of `x`.
    ///
    /// # Safety
    /// The machine has AMX, and no other thread fills or reads this tile meanwhile.
    pub unsafe fn fill(&self, tile: usize, x: &Quantised, rows: &[u32]) {
        assert!(x.cols() / GROUP == self.groups && x.planes() == self.planes && (1..=TILE).contains(&rows.len()));
        let (lines, values) = (tile * self.lines(), tile * self.groups * TILE);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller owns the tile, and tiles do not overlap.
        unsafe {
            let codes = self.codes.slice_mut(lines..lines + self.lines()).as_mut_ptr().cast();
            let scales = self.scales.slice_mut(values..values + self.groups * TILE);
            let sums = self.sums.slice_mut(values..values + self.groups * TILE);
            amx::fill(TileOutput { codes, scales, sums }, x, rows);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no step makes tiles here: {lines} {values}");
    }

    /// A filled tile of the matrix's inputs.
    pub fn input(&self, tile: usize, groups: usize) -> TileInput {
        assert!(groups == self.groups, "tiles of {} groups, weights of {groups}", self.groups);
        let (lines, values) = (tile * self.lines(), tile * self.groups * TILE);
        // SAFETY: whoever fills tiles keeps readers out until all are filled.
        unsafe {
            TileInput {
                codes: self.codes.slice(lines..lines + self.lines()).as_ptr().cast(),
                scales: self.scales.slice(values..values + self.groups * TILE).as_ptr(),
                sums: self.sums.slice(values..values + self.groups * TILE).as_ptr(),
            }
        }
    }
}
