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
    let call = Call { view, range, xs, count };
    match isa {
        // SAFETY: an `Isa` in use was found on this machine.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(&call, out, scratch) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(&call, out, scratch) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot => rows::<8>(&call, out, scratch, |a, b, c| a.mul_add(b, c)),
        _ => rows::<4>(&call, out, scratch, |a, b, c| a * b + c),
    }
}

struct Call<'c, 'x> {
    view: &'c View<'c>,
    range: Range<usize>,
    xs: &'c dyn Fn(usize) -> &'x [f32],
    count: usize,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn avx512(call: &Call<'_, '_>, out: &mut [f32], scratch: &mut LoopScratch) {
    rows::<16>(call, out, scratch, |a, b, c| a.mul_add(b, c));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2(call: &Call<'_, '_>, out: &mut [f32], scratch: &mut LoopScratch) {
    rows::<8>(call, out, scratch, |a, b, c| a.mul_add(b, c));
}

/// All rows, `L` lanes at a time; `fma(a, b, c) = a * b + c`.
#[inline(always)]
fn rows<const L: usize>(call: &Call<'_, '_>, out: &mut [f32], scratch: &mut LoopScratch, fma: impl Fn(f32, f32, f32) -> f32 + Copy) {
    let cols = call.view.cols;
    let width = call.range.len();
    grow(&mut scratch.floats, ROWS * cols, 0.0);
    for first in (0..width).step_by(ROWS) {
        let live = ROWS.min(width - first);
        for i in 0..live {
            row_floats(call.view, call.range.start + first + i, &mut scratch.floats[i * cols..(i + 1) * cols]);
        }
        let weights: [&[f32]; ROWS] = std::array::from_fn(|i| {
            let i = i.min(live - 1);
            &scratch.floats[i * cols..(i + 1) * cols]
        });
        let mut n = 0;
        while n + 1 < call.count {
            let products = dots::<L, ROWS, 2>(weights, [(call.xs)(n), (call.xs)(n + 1)], fma);
            for i in 0..live {
                out[n * width + first + i] = products[i][0];
                out[(n + 1) * width + first + i] = products[i][1];
            }
            n += 2;
        }
        if n < call.count {
            let products = dots::<L, ROWS, 1>(weights, [(call.xs)(n)], fma);
            for i in 0..live {
                out[n * width + first + i] = products[i][0];
            }
        }
    }
}

/// Products of `R` weight rows with `X` activation rows. Lane `l` sums inputs `l, l + L, ...`.
#[inline(always)]
fn dots<const L: usize, const R: usize, const X: usize>(
    weights: [&[f32]; R],
    xs: [&[f32]; X],
    fma: impl Fn(f32, f32, f32) -> f32,
) -> [[f32; X]; R] {
    let tails = (weights.map(|row| row.as_chunks::<L>().1), xs.map(|row| row.as_chunks::<L>().1));
    let weights = weights.map(|row| row.as_chunks::<L>().0);
    let xs = xs.map(|row| row.as_chunks::<L>().0);
    let steps = xs[0].len();
    assert!(weights.iter().chain(&xs).all(|row| row.len() == steps));
    let mut sums = [[[0f32; L]; X]; R];
    for step in 0..steps {
        for r in 0..R {
            for x in 0..X {
                for lane in 0..L {
                    sums[r][x][lane] = fma(weights[r][step][lane], xs[x][step][lane], sums[r][x][lane]);
                }
            }
        }
    }
    for (r, weights) in tails.0.iter().enumerate() {
        for (x, xs) in tails.1.iter().enumerate() {
            for (lane, (weight, x_value)) in weights.iter().zip(*xs).enumerate() {
                sums[r][x][lane] = fma(*weight, *x_value, sums[r][x][lane]);
            }
        }
    }
    sums.map(|row| row.map(tree_sum))
}

/// Halves folded onto each other: the order that vector code can keep.
#[inline(always)]
fn tree_sum<const L: usize>(mut lanes: [f32; L]) -> f32 {
    let mut width = L / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
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
