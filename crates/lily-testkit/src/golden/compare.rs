//! How far an output is from its reference, and where.

/// Anything an engine may put out.
pub trait Element: Copy {
    /// The exact value.
    fn exact(self) -> f64;
}

impl Element for f32 {
    fn exact(self) -> f64 {
        f64::from(self)
    }
}

impl Element for f64 {
    fn exact(self) -> f64 {
        self
    }
}

impl Element for half::bf16 {
    fn exact(self) -> f64 {
        self.to_f64()
    }
}

/// The distance of an output from its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Name of the tensor.
    pub name: String,
    /// `‖out - reference‖ / ‖reference‖` over all elements; infinite if any element of `out` is not finite.
    pub relative: f64,
    /// The largest absolute difference.
    pub max_abs: f64,
    /// Where it is.
    pub worst: usize,
    /// The output there.
    pub found: f64,
    /// The reference there.
    pub expected: f64,
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { name, relative, max_abs, worst, found, expected } = self;
        write!(f, "{name}: relative error {relative:.2e}, worst element {worst}: ")?;
        write!(f, "expected {expected:.7}, found {found:.7} (off by {max_abs:.2e})")
    }
}

impl Comparison {
    /// Panics, with the whole comparison, unless the relative error is within `tolerance`.
    pub fn assert_within(&self, tolerance: f64) {
        assert!(self.relative <= tolerance, "{self}; tolerated is {tolerance:.2e}");
    }
}

/// Compares `out` with `reference` (equal lengths).
pub fn compare<A: Element, B: Element>(name: &str, out: &[A], reference: &[B]) -> Comparison {
    assert_eq!(out.len(), reference.len(), "{name}: output and reference differ in length");
    let (mut error, mut norm) = (0.0, 0.0);
    let mut result = Comparison { name: name.to_owned(), relative: 0.0, max_abs: 0.0, worst: 0, found: 0.0, expected: 0.0 };
    for (index, (found, expected)) in out.iter().map(|o| o.exact()).zip(reference.iter().map(|r| r.exact())).enumerate() {
        assert!(expected.is_finite(), "{name}: the reference itself is {expected} at {index}");
        let distance = if found.is_finite() { (found - expected).abs() } else { f64::INFINITY };
        error += distance * distance;
        norm += expected * expected;
        if index == 0 || distance > result.max_abs {
            (result.max_abs, result.worst, result.found, result.expected) = (distance, index, found, expected);
        }
    }
    // A reference of zeros asks for zeros.
    result.relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    result
}

/// Compares row by row (`width` elements each) and returns the worst row, named `NAME[row]`: over a whole tensor, one
/// wrong row among many hides in the norm.
pub fn worst_row<A: Element, B: Element>(name: &str, out: &[A], reference: &[B], width: usize) -> Comparison {
    assert_eq!(out.len(), reference.len(), "{name}: output and reference differ in length");
    assert!(!out.is_empty() && out.len().is_multiple_of(width), "{name}: {} elements are not rows of {width}", out.len());
    let rows = out.chunks_exact(width).zip(reference.chunks_exact(width)).enumerate();
    let compared = rows.map(|(row, (out, reference))| compare(&format!("{name}[{row}]"), out, reference));
    compared.max_by(|a, b| a.relative.total_cmp(&b.relative)).expect("at least one row")
}

/// Panics unless `out` is within `tolerance` of `reference`, relative, over the whole tensor.
pub fn assert_close<A: Element, B: Element>(name: &str, out: &[A], reference: &[B], tolerance: f64) {
    compare(name, out, reference).assert_within(tolerance);
}

/// Panics unless every row of `width` elements is within `tolerance` of the reference, relative to that row.
pub fn assert_rows_close<A: Element, B: Element>(name: &str, out: &[A], reference: &[B], width: usize, tolerance: f64) {
    worst_row(name, out, reference, width).assert_within(tolerance);
}
