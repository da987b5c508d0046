//! Near-ties of the router: where rounding alone decides which expert a row goes to.
//!
//! A row that takes another expert is not off by rounding but by that expert, and no tolerance says anything about it.
//! The rule: a row may take another expert only where the reference's margin is below [`Tolerances::near_tie`]; such a
//! row is excused from there on. Rows behind it see it through the mixers, as one of many, and are held to a bound that
//! is [`BEHIND`] times as wide, all together. Rows before it are held to the bound itself; where that speaks of all rows
//! together, a single one may be `ALONE` times as far off, as rows differ in how much their norms make of an error.
//!
//! [`Tolerances::near_tie`]: super::Tolerances::near_tie

use super::Bound;
use crate::golden::{Element, compare, worst_row};
use crate::reference::{Model, Route, Trace, route};

/// How much further rows may be off that see excused ones (measured: five times).
pub const BEHIND: f64 = 8.0;

/// How much further a single row may be off where a bound speaks of all (measured: 2.6 times).
const ALONE: f64 = 4.0;

/// What the reference chose, and the rows that are excused so far.
pub struct Ties {
    label: String,
    near: f64,
    /// Per layer and row.
    routes: Vec<Vec<Route>>,
    /// Per row: the first layer of which its choice is another's.
    excused: Vec<usize>,
}

impl Ties {
    /// Of a pass of the reference from an empty state, traced.
    pub fn new(label: &str, near: f64, model: &Model, trace: &Trace) -> Self {
        let logits = |layer: usize| trace.get(&format!("layers.{layer}.router")).expect("the reference was traced");
        let routes: Vec<Vec<Route>> = (0..model.layers.len()).map(|layer| route(logits(layer), &model.dims.moe)).collect();
        let excused = vec![usize::MAX; routes[0].len()];
        Ties { label: label.to_owned(), near, routes, excused }
    }

    /// Excuses the rows that chose otherwise in this layer; panics where the margin gives them no reason.
    pub fn chose(&mut self, layer: usize, row: usize, mut experts: Vec<usize>) {
        let behind = self.excused[..row].iter().any(|&first| first < layer);
        let Route { experts: expected, margin, .. } = &self.routes[layer][row];
        let mut expected = expected.clone();
        experts.sort_unstable();
        expected.sort_unstable();
        if self.excused[row] < layer || experts == expected {
            return;
        }
        let near = self.near * if behind { BEHIND } else { 1.0 };
        let Ties { label, .. } = &self;
        let what = format!("{label}: row {row} of layer {layer} takes experts {experts:?} instead of {expected:?}");
        println!("{what}, by a margin of {margin:.1e}");
        assert!(*margin <= near, "{what}, by a margin of {margin:.2e}; tolerated is {near:.2e}");
        self.excused[row] = layer;
    }

    /// Excuses every row that may choose otherwise, in whatever layer: where nobody can see what a device chose.
    pub fn excuse_all_near(&mut self) {
        for (layer, routes) in self.routes.iter().enumerate().rev() {
            for (row, _) in routes.iter().enumerate().filter(|(_, route)| route.margin <= self.near) {
                self.excused[row] = layer;
            }
        }
    }

    /// How many rows are excused at the end.
    pub fn excused(&self) -> usize {
        self.excused.iter().filter(|&&first| first < usize::MAX).count()
    }

    /// Compares `rows` of a tensor (`[rows, width]`), written before the experts of `layer` or after them.
    pub fn assert_within<R: Element>(
        &self,
        (layer, after): (usize, bool),
        label: &str,
        rows: &[usize],
        (found, expected): (&[f32], &[R]),
        bound: Bound,
    ) {
        let width = found.len() / rows.len();
        let excused = |row: usize| if after { self.excused[row] <= layer } else { self.excused[row] < layer };
        let first = (0..self.excused.len()).find(|&row| excused(row)).unwrap_or(usize::MAX);
        let (mut steady, mut behind) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (at, &row) in rows.iter().enumerate().filter(|(_, row)| !excused(**row)) {
            let part = at * width..(at + 1) * width;
            let (to_found, to_expected) = if row < first { &mut steady } else { &mut behind };
            to_found.extend_from_slice(&found[part.clone()]);
            to_expected.extend_from_slice(&expected[part]);
        }
        let label = format!("{} {label}", self.label);
        if !steady.0.is_empty() {
            bound.compare(&label, &steady.0, &steady.1, width).assert_within(bound.tolerance());
            worst_row(&label, &steady.0, &steady.1, width).assert_within(ALONE * bound.tolerance());
        }
        if !behind.0.is_empty() {
            let label = format!("{label}, rows behind {first}, which took other experts,");
            compare(&label, &behind.0, &behind.1).assert_within(BEHIND * bound.tolerance());
        }
        assert!(found.iter().all(|value| value.is_finite()), "{label}: not finite");
    }
}
