//! The trait of fused steps: the line below which devices differ.
//!
//! Each method is one fused step of this architecture, at the granularity of a GPU kernel. The contract
//! suits a device that computes at once (CPU) as well as one that records a command list (GPU):
//! - Buffers are handles of activations that the device allocated at load, `[rows, width]`, row-major.
//!   A shared borrow is a read, an exclusive borrow a write; that is all a command list needs in order
//!   to derive the dependencies.
//! - Steps return nothing and never branch on data: routing stays inside its step.
//! - Which slot, position and pages a row has was staged by [`Steps::stage`]; steps see row counts only.
//! - Which kernel or loop serves a row count is the device's choice.
//!
//! Widths below use the glossary of [`crate::ModelConfig`]. What the device stores inside a buffer
//! (f32, bf16, quantised planes) is its own affair; [`Steps::read`] gives f32 for tests and traces.

use crate::batch::Batch;
use crate::error::ModelError;

/// Which RMS norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSite {
    /// Before the mixer of a layer.
    Mixer(usize),
    /// Before the mixture of experts of a layer.
    Experts(usize),
}

/// Activation buffers, each `[rows_max, width]`. The forward pass owns the handles.
pub struct Activations<B> {
    /// The residual stream, `[rows, hidden]`.
    pub residual: B,
    /// Normalised input of a mixer or of the experts, `[rows, hidden]`.
    pub normed: B,
    /// Mixer projections: `qkv | z | b | a` of a DeltaNet layer, `q+gate | k | v` of an attention layer.
    pub projected: B,
    /// Mixer result before the output projection, `[rows, max(v_width, heads_q * head_dim)]`.
    pub mixed: B,
    /// Router result: expert ids and weights of every row, and the shared expert's gate.
    pub routes: B,
    /// `silu(gate) * up` of every chosen expert and of the shared one,
    /// `[rows, experts_per_token * expert_width + shared_width]`.
    pub expert_hidden: B,
}

/// The fused steps of the architecture. `layer` indexes the model's layers.
pub trait Steps {
    /// Handle of one activation buffer.
    type Buffer;

    /// Allocates the activation buffers for the device's largest pass. Called once, at load.
    fn activations(&mut self) -> Result<Activations<Self::Buffer>, ModelError>;

    /// Uploads a batch's tokens, slots, positions and page tables. Checks nothing: the runner did. [`crate::NEXT`] comes
    /// only after [`crate::Device::queue_select`] had a ticket for it.
    fn stage(&mut self, batch: &Batch<'_>);

    /// `residual = embedding[token]`.
    fn embed(&mut self, rows: usize, residual: &mut Self::Buffer);

    /// `out = rms(x) * gain`.
    fn norm(&mut self, site: NormSite, rows: usize, x: &Self::Buffer, out: &mut Self::Buffer);

    /// `projected = [in_proj_qkv | in_proj_z | in_proj_b | in_proj_a] x`.
    fn delta_project(&mut self, layer: usize, rows: usize, x: &Self::Buffer, projected: &mut Self::Buffer);

    /// Causal convolution, gated delta update and gated norm; advances the slots' state.
    fn delta_update(&mut self, layer: usize, rows: usize, projected: &Self::Buffer, mixed: &mut Self::Buffer);

    /// `projected = [q_proj | k_proj | v_proj] x`.
    fn attn_project(&mut self, layer: usize, rows: usize, x: &Self::Buffer, projected: &mut Self::Buffer);

    /// Norm and rotary embedding of queries and keys, in place; keys and values enter the KV pages.
    fn attn_prepare(&mut self, layer: usize, rows: usize, projected: &mut Self::Buffer);

    /// Causal attention over the sequence's pages, times `sigmoid(gate)`.
    fn attn_mix(&mut self, layer: usize, rows: usize, projected: &Self::Buffer, mixed: &mut Self::Buffer);

    /// `residual += out_proj mixed` (or `o_proj` in an attention layer).
    fn mixer_output(&mut self, layer: usize, rows: usize, mixed: &Self::Buffer, residual: &mut Self::Buffer);

    /// Softmax over all experts, top-k (lowest id first on ties), weights divided by their sum; the
    /// shared expert's `sigmoid(gate)`.
    fn moe_route(&mut self, layer: usize, rows: usize, x: &Self::Buffer, routes: &mut Self::Buffer);

    /// `silu(gate_e x) * up_e x` for the chosen experts and the shared expert.
    fn moe_gate_up(&mut self, layer: usize, rows: usize, x: &Self::Buffer, routes: &Self::Buffer, hidden: &mut Self::Buffer);

    /// `residual += sum_e weight_e * down_e hidden_e + shared_gate * down_shared hidden_shared`.
    fn moe_down(&mut self, layer: usize, rows: usize, routes: &Self::Buffer, hidden: &Self::Buffer, residual: &mut Self::Buffer);

    /// Final norm and language-model head for the staged batch's logit rows, into the device's logits.
    fn head(&mut self, rows: usize, residual: &Self::Buffer);

    /// The first `rows` rows of a buffer as f32, `[rows, width]`: for tests and traces. For `routes`:
    /// per row the expert ids, then the weights, then the shared gate.
    /// Gives what the steps before the last [`Steps::flush`] wrote.
    fn read(&self, buffer: &Self::Buffer, rows: usize) -> Vec<f32>;

    /// Overwrites the first `rows` rows of a buffer, in the layout of [`Steps::read`]: tests make up operands and poison
    /// results through this. Values are rounded to what the device stores; NaN stays NaN. For `routes`, whatever the
    /// device derives from a row's experts (their lists of rows, say) is made anew.
    fn write(&mut self, buffer: &mut Self::Buffer, rows: usize, values: &[f32]);

    /// Runs the steps recorded so far and waits for them: afterwards [`Steps::read`] sees their results. The staged
    /// batch stays staged. [`crate::Device::finish`] implies it; the forward pass never asks for it; tests do after every
    /// single step, the engine before it keeps a state. Nothing to do for a device that computes at once.
    fn flush(&mut self) -> Result<(), ModelError> {
        Ok(())
    }
}
