//! The tolerances, each with its reason. All are relative: `‖out - reference‖ / ‖reference‖`.
//!
//! A tolerance is not a wish: it is a bound on the rounding that the computation must do, with room for the order of
//! its sums. An error above it is a bug.

/// The f64 reference against transformers or mlx-lm in f32, one layer's tensors or the logits.
///
/// f32 rounds each operation to 6e-8; a handful of layers with sums over hundreds of inputs amplify that some ten- to
/// thirtyfold. Measured: 4e-6 at most over all
/// positions, 7e-6 at the worst one (the table of `tools/goldens/README.md`).
pub const REFERENCE_VS_F32: f64 = 2e-5;

/// One step computed in f32 with f32 operands.
pub const STEP_F32: f64 = 1e-5;

/// One step whose output (or operands) are rounded to bf16: half a unit in the last of 8 bits is 2e-3 of an element,
/// uniform within that over many elements, and some steps round twice.
pub const STEP_BF16: f64 = 4e-3;

/// Logits of a whole model in an engine that keeps activations in f32.
pub const LOGITS_F32: f64 = 1e-3;

/// Logits of a whole model in an engine that rounds activations to bf16 between steps: 3e-3 a step, added in squares
/// over some twenty steps.
pub const LOGITS_BF16: f64 = 3e-2;

/// Perplexity, relative.
pub const PERPLEXITY: f64 = 1e-3;
