//! Products in f32: weight rows are turned into floats a few at a time, activations stay as they are.
//!
//! The path of everything that the integer loops do not take, and the reference for them. Start with
//! [`multiply`]. A product is summed in the same order whatever the number of rows, so results do not
//! depend on how a prompt is cut.

// Register tiles are indexed in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::workspace::LoopScratch;
use super::{Values, View};
use crate::convert;
use crate::isa::Isa;
use crate::quantise::grow;
use crate::simd::{Kernel, Simd};

/// Weight rows that become floats together.
const ROWS: usize = 4;

/// `out[n, r] = w[range.start + r] . x(n)` for `count` rows of x.
pub fn multiply<'x>(
    isa: Isa,
    view: &View<'_>,
    range: Range<usize>,
    xs: &dyn Fn(usize) -> &'x [f32],
    count: usize,
    out: &mut [f32],
    scratch: &mut LoopScratch,
) {
    Products { view, range, xs, count, out, scratch }.on(isa);
}

struct Products<'c, 'x> {
    view: &'c View<'c>,
    range: Range<usize>,
    xs: &'c dyn Fn(usize) -> &'x [f32],
    count: usize,
    out: &'c mut [f32],
    scratch: &'c mut LoopScratch,
}

impl Kernel for Products<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cols, width) = (self.view.cols, self.range.len());
        grow(&mut self.scratch.floats, ROWS * cols, 0.0);
        for first in (0..width).step_by(ROWS) {
            let live = ROWS.min(width - first);
            for i in 0..live {
                row_floats(self.view, self.range.start + first + i, &mut self.scratch.floats[i * cols..(i + 1) * cols]);
            }
            // Rows past the last are those of the time before: their products are not stored.
            let weights = &self.scratch.floats[..ROWS * cols];
            let mut n = 0;
            while n < self.count {
                let step = (self.count - n).min(2);
                let x = [(self.xs)(n), (self.xs)(n + step - 1)];
                let products = if step == 2 { dots::<S, 2>(s, weights, x) } else { dots::<S, 1>(s, weights, [x[0]]).map(|[x]| [x, x]) };
                for at in 0..step {
                    let out = &mut self.out[(n + at) * width + first..][..live];
                    out.iter_mut().zip(&products).for_each(|(out, products)| *out = products[at]);
                }
                n += step;
            }
        }
    }
}

/// Products of `weights [ROWS, cols]` with `X` rows. One vector of partial sums each, in an order that depends on
/// neither count.
#[inline(always)]
fn dots<S: Simd, const X: usize>(s: S, weights: &[f32], xs: [&[f32]; X]) -> [[f32; X]; ROWS] {
    let cols = weights.len() / ROWS;
    assert!(xs.iter().all(|x| x.len() == cols), "rows of x and weights differ in length");
    let mut sums = [[s.zero(); X]; ROWS];
    for at in (0..cols).step_by(S::LANES) {
        let left = cols - at;
        let mut x = [s.zero(); X];
        for (x, row) in x.iter_mut().zip(&xs) {
            // SAFETY: `left` values follow `at`.
            *x = unsafe { s.load_some(row.as_ptr().add(at), left) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `left` values of the row follow `at`.
            let weight = unsafe { s.load_some(weights.as_ptr().add(r * cols + at), left) };
            for (sum, &x) in sums.iter_mut().zip(&x) {
                *sum = s.mul_add(weight, x, *sum);
            }
        }
    }
    let mut products = [[0.0; X]; ROWS];
    for (products, sums) in products.iter_mut().zip(sums) {
        for (product, sum) in products.iter_mut().zip(sums) {
            *product = s.sum(sum);
        }
    }
    products
}

/// Row `row` of the weights as floats.
#[inline(always)]
pub fn row_floats(view: &View<'_>, row: usize, out: &mut [f32]) {
    let cols = view.cols;
    match view.values {
        Values::Plain { dtype, values } => {
            let bytes = cols * convert::width(dtype);
            convert::floats(dtype, &values[row * bytes..(row + 1) * bytes], out);
        }
        Values::Affine { bits, group, codes, scales, biases, dtype } => {
            let codes = &codes[row * cols * bits / 8..(row + 1) * cols * bits / 8];
            let bytes = convert::width(dtype);
            let groups = row * (cols / group)..(row + 1) * (cols / group);
            for (index, at) in groups.enumerate() {
                let (mut scale, mut bias) = ([0.0], [0.0]);
                convert::floats(dtype, &scales[at * bytes..(at + 1) * bytes], &mut scale);
                convert::floats(dtype, &biases[at * bytes..(at + 1) * bytes], &mut bias);
                let codes = &codes[index * group * bits / 8..(index + 1) * group * bits / 8];
                group_floats(bits, codes, scale[0], bias[0], &mut out[index * group..(index + 1) * group]);
            }
        }
    }
}

#[inline(always)]
fn group_floats(bits: usize, codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    if bits == 8 {
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(code) + bias;
        }
    } else {
        for (out, &code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *out = [scale * f32::from(code & 15) + bias, scale * f32::from(code >> 4) + bias];
        }
    }
}
