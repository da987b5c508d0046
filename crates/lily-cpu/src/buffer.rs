//! Activation buffers: what the handles of the forward pass hold on this device.

use lily_model::ModelError;

use crate::arena::Arena;
use crate::matrix::Routes;

/// One activation buffer, allocated at load.
pub enum Buffer {
    Rows(Rows),
    Routes(RouteRows),
}

/// `[rows, width]` f32, row-major.
pub struct Rows {
    values: Arena<f32>,
    width: usize,
}

/// What the router says about each row.
pub struct RouteRows {
    /// Choices of a row.
    per_row: usize,
    /// Expert of each choice, `[rows, per_row]`.
    pub ids: Vec<u32>,
    /// Weight of each choice, `[rows, per_row]`.
    pub weights: Vec<f32>,
    /// `sigmoid` of the shared expert's gate, `[rows]`.
    pub shared: Vec<f32>,
}

impl Buffer {
    pub(crate) fn rows(rows: usize, width: usize, what: &str) -> Result<Self, ModelError> {
        Ok(Buffer::Rows(Rows { values: Arena::new(rows * width, what)?, width }))
    }

    pub(crate) fn routes(rows: usize, per_row: usize) -> Self {
        let (ids, weights) = (vec![0; rows * per_row], vec![0.0; rows * per_row]);
        Buffer::Routes(RouteRows { per_row, ids, weights, shared: vec![0.0; rows] })
    }

    /// The values.
    ///
    /// # Panics
    /// If these are routes: the forward pass has a bug.
    pub fn values(&self) -> &Rows {
        match self {
            Buffer::Rows(rows) => rows,
            Buffer::Routes(_) => panic!("a step wants activations and was given routes"),
        }
    }

    /// The values, to write: tests fill operands and poison results through this.
    ///
    /// # Panics
    /// As [`Buffer::values`].
    pub fn values_mut(&mut self) -> &mut Rows {
        match self {
            Buffer::Rows(rows) => rows,
            Buffer::Routes(_) => panic!("a step wants activations and was given routes"),
        }
    }

    /// The routes.
    ///
    /// # Panics
    /// If these are activations: the forward pass has a bug.
    pub fn route_rows(&self) -> &RouteRows {
        match self {
            Buffer::Routes(routes) => routes,
            Buffer::Rows(_) => panic!("a step wants routes and was given activations"),
        }
    }

    /// The routes, to write.
    ///
    /// # Panics
    /// As [`Buffer::route_rows`].
    pub fn route_rows_mut(&mut self) -> &mut RouteRows {
        match self {
            Buffer::Routes(routes) => routes,
            Buffer::Rows(_) => panic!("a step wants routes and was given activations"),
        }
    }
}

impl Rows {
    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first `rows` rows.
    pub fn first(&self, rows: usize) -> &[f32] {
        &self.values[..rows * self.width]
    }

    /// The first `rows` rows, to write.
    pub fn first_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.values[..rows * self.width]
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }
}

impl RouteRows {
    pub fn per_row(&self) -> usize {
        self.per_row
    }

    /// As the matrix loops take them.
    pub(crate) fn as_routes(&self) -> Routes<'_> {
        Routes { per_row: self.per_row, ids: &self.ids, weights: &self.weights, shared: &self.shared }
    }

    /// Per row the ids, the weights, the shared gate.
    pub(crate) fn to_f32(&self, rows: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows * (2 * self.per_row + 1));
        for row in 0..rows {
            let choices = row * self.per_row..(row + 1) * self.per_row;
            out.extend(self.ids[choices.clone()].iter().map(|&id| id as f32));
            out.extend_from_slice(&self.weights[choices]);
            out.push(self.shared[row]);
        }
        out
    }

    /// The same, to write: `values` are whole rows.
    pub(crate) fn set_f32(&mut self, rows: usize, values: &[f32]) {
        let per_row = self.per_row;
        assert_eq!(values.len(), rows * (2 * per_row + 1), "{rows} rows of {per_row} routes each");
        for (row, values) in values.chunks_exact(2 * per_row + 1).enumerate() {
            let choices = row * per_row..(row + 1) * per_row;
            let ids = self.ids[choices.clone()].iter_mut().zip(&values[..per_row]);
            ids.for_each(|(id, &value)| *id = value as u32);
            self.weights[choices].copy_from_slice(&values[per_row..2 * per_row]);
            self.shared[row] = values[2 * per_row];
        }
    }
}
