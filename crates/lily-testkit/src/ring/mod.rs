//! The test rings that every device passes: single steps, layers, whole models, the bundled model.
//!
//! A device's tests say with [`Subject`] how it is opened, what it rounds to and how far it may be off, and call the
//! checks with the cases that are theirs: a processor takes all of them, a simulator those it can do in reasonable time.
//!
//! - [`ahead`]: two steps in flight, against one after the other;
//! - [`kernel`]: every step alone, on made-up operands, against the f64 reference;
//! - [`mod@layer`]: every layer of the tiny models, against transformers and the reference;
//! - [`model`]: whole tiny models, against other engines and against themselves;
//! - [`mod@select`]: the device's choice of tokens, against the one definition;
//! - [`nano`]: the bundled model: logits, text, perplexity, and the agreement of two devices;
//! - [`ties`]: which rows of a pass rounding may send to other experts, and what that excuses;
//! - [`rig`]: what they share: a model driven by hand, and single steps of it.

pub mod ahead;
pub mod kernel;
pub mod layer;
pub mod model;
pub mod nano;
pub mod rig;
pub mod select;
mod subject;
pub mod ties;

pub use subject::{Bound, Numerics, Subject, Tolerances};
