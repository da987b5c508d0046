//! Keys and values of all sequences, in pages of 256 positions.
//!
//! Stored as IEEE half floats, saturating at 65504: 11 bits of significand where bfloat16 has 8, and normalised keys
//! and the values of this model stay far inside the range. A page is contiguous over all attention layers, so that
//! copying or saving it is one copy. Inside: `[attention layers, heads_kv, keys | values, 256, stride]`, where a row is
//! `head_dim` values padded with zeros to a whole number of vectors.

use lily_model::{LayerKind, ModelConfig, ModelError, PAGE_TOKENS, Page};

use crate::arena::{Arena, bytes_of, copy_bytes};
use crate::simd::{Kernel, Simd};

/// Values of the widest vector: rows are padded to a multiple.
const PAD: usize = 16;

/// Sizes inside a page, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvLayout {
    /// One row: `head_dim` rounded up.
    pub stride: usize,
    /// One head's keys, or values, of a page.
    pub half: usize,
    pub layer: usize,
    pub page: usize,
}

impl KvLayout {
    pub fn new(config: &ModelConfig) -> Self {
        let stride = config.head_dim.next_multiple_of(PAD);
        let half = PAGE_TOKENS * stride;
        let layer = config.heads_kv * 2 * half;
        KvLayout { stride, half, layer, page: layer * config.layers_of(LayerKind::Attention) }
    }

    /// Where the keys of a head stand; its values follow `half` later. `layer` counts attention layers.
    pub fn keys(&self, page: Page, layer: usize, head: usize) -> usize {
        page.0 as usize * self.page + layer * self.layer + head * 2 * self.half
    }
}

/// The pages.
pub(crate) struct KvPages {
    pub layout: KvLayout,
    values: Arena<u16>,
}

impl KvPages {
    pub fn new(config: &ModelConfig, pages: usize) -> Result<Self, ModelError> {
        let layout = KvLayout::new(config);
        Ok(KvPages { layout, values: Arena::new(layout.page * pages, "KV pages")? })
    }

    /// Everything, for steps that find their rows by [`KvLayout`].
    pub fn all(&self) -> &[u16] {
        &self.values
    }

    pub fn all_mut(&mut self) -> &mut [u16] {
        &mut self.values
    }

    pub fn save(&self, page: Page) -> Box<[u8]> {
        let start = page.0 as usize * self.layout.page;
        bytes_of(&self.values[start..start + self.layout.page]).into()
    }

    pub fn load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        let expected = self.layout.page * size_of::<u16>();
        if bytes.len() != expected {
            return Err(ModelError::Device(format!("KV page: expected {expected} bytes, found {}", bytes.len())));
        }
        let start = page.0 as usize * self.layout.page;
        copy_bytes(&mut self.values[start..start + self.layout.page], bytes);
        Ok(())
    }

    pub fn copy(&mut self, from: Page, to: Page) {
        let (from, to) = (from.0 as usize * self.layout.page, to.0 as usize * self.layout.page);
        self.values.copy_within(from..from + self.layout.page, to);
    }
}

/// Narrows one row into the cache, saturating; NaN stays NaN.
pub(crate) struct StoreHalf<'a> {
    pub x: &'a [f32],
    /// At least as long as `x` rounded up to whole vectors.
    pub out: &'a mut [u16],
}

impl Kernel for StoreHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.out.len() >= self.x.len().next_multiple_of(S::LANES));
        for at in (0..self.x.len()).step_by(S::LANES) {
            // SAFETY: `len - at` values of `x` follow `at`; `out` has room for whole vectors.
            unsafe {
                let x = s.load_some(self.x.as_ptr().add(at), self.x.len() - at);
                s.store_half(self.out.as_mut_ptr().add(at), s.clamp(x, -65504.0, 65504.0));
            }
        }
    }
}
