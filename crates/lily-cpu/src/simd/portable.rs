//! Vectors of eight without any instruction set: plain loops that the compiler may vectorise as it can.

use half::f16;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Eight = [f32; 8];

#[inline(always)]
fn map2(a: Eight, b: Eight, f: impl Fn(f32, f32) -> f32) -> Eight {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Portable {
    type V = Eight;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn prefetch<T>(self, _at: *const T) {}
    #[inline(always)]
    fn splat(self, x: f32) -> Eight {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Eight {
        // SAFETY: eight values are readable, by the caller's promise; an array has no alignment beyond its element's.
        unsafe { at.cast::<Eight>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, x: Eight) {
        // SAFETY: as in `load`.
        unsafe { at.cast::<Eight>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_half(self, at: *const u16) -> Eight {
        // SAFETY: as in `load`.
        let bits = unsafe { at.cast::<[u16; 8]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u16, x: Eight) {
        // SAFETY: as in `load`.
        unsafe { at.cast::<[u16; 8]>().write_unaligned(x.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    fn add(self, a: Eight, b: Eight) -> Eight {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Eight, b: Eight) -> Eight {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Eight, b: Eight) -> Eight {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Eight, b: Eight) -> Eight {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: Eight, b: Eight, c: Eight) -> Eight {
        // Two roundings: `f32::mul_add` would call a library function where there is no instruction.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn neg_mul_add(self, a: Eight, b: Eight, c: Eight) -> Eight {
        self.sub(c, self.mul(a, b))
    }
    #[inline(always)]
    fn clamp(self, x: Eight, low: f32, high: f32) -> Eight {
        x.map(|x| {
            let x = if x < low { low } else { x };
            if x > high { high } else { x }
        })
    }
    #[inline(always)]
    fn max(self, a: Eight, b: Eight) -> Eight {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn round(self, x: Eight) -> Eight {
        // Adding and subtracting 1.5 * 2^23 leaves the nearest integer for |x| < 2^22.
        x.map(|x| (x + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    fn pow2(self, x: Eight) -> Eight {
        x.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn sum(self, x: Eight) -> f32 {
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline(always)]
    fn max_lane(self, x: Eight) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}
