//! What the engine drives: the forward pass on one device, with its state slots and KV pages.

use crate::batch::{Batch, NEXT, PAGE_TOKENS, Page, Slot, Span};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::forward::forward;
use crate::select::Selection;
use crate::steps::{Activations, Steps};

/// What the device allocated at load. Nothing is allocated per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Recurrent-state slots: sequences that can be in flight.
    pub slots: usize,
    /// KV pages, shared by all sequences.
    pub pages: usize,
    /// Rows of the largest pass: the prefill chunk.
    pub rows: usize,
    /// Rows of the largest pass that may ask for logits.
    pub logit_rows: usize,
}

/// A copy of one slot's recurrent state, outside the arena: what the state cache keeps. Opaque bytes in
/// the device's own layout; valid for the same model and device kind only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCopy(pub Box<[u8]>);

/// Names a choice that a device carries out by itself, see [`Device::queue_select`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Tokens that are chosen or about to be: what [`Runner::chosen`] waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Made(Vec<u32>),
    Queued(Ticket),
}

/// A device around its steps: state slots, KV pages, the result of a pass.
pub trait Device: Steps + Send {
    /// For logs and `/health`, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;
    fn capacity(&self) -> Capacity;
    /// Rows that a pass of a prompt should have at most from this position on: a device whose passes must end soon takes
    /// fewer as the context grows.
    fn prompt_rows(&self, _position: usize) -> usize {
        self.capacity().rows
    }
    /// Completes the staged and recorded pass ([`Steps::flush`] included): afterwards its logits can be read.
    fn finish(&mut self) -> Result<(), ModelError>;
    /// Logits of the last finished pass, `[vocab]`; `row` counts the batch's logit rows.
    fn logits(&self, row: usize) -> &[f32];
    /// Chooses one token for each logit row of the last pass, in order.
    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError>;
    /// As [`Device::select`], without waiting: the tokens stay on the device, where the next pass finds them in the place
    /// of [`NEXT`]. `None` if these are not chosen there; [`Device::select`] then is for them, and the next pass brings
    /// no [`NEXT`]. A device that works at once has nothing to gain.
    fn queue_select(&mut self, selections: &[Selection]) -> Result<Option<Ticket>, ModelError> {
        let _ = selections;
        Ok(None)
    }
    /// Waits for a queued choice and what was queued before it, and for nothing queued after. An error is that of the
    /// choice's own pass or of one before; the choices queued after it are lost with it. Each ticket counts once.
    fn chosen(&mut self, ticket: Ticket) -> Result<Vec<u32>, ModelError> {
        Err(ModelError::Device(format!("expected a queued choice, found {ticket:?} of none")))
    }
    /// Zeroes a slot: the state before the first token.
    fn state_clear(&mut self, slot: Slot);
    fn state_save(&self, slot: Slot) -> StateCopy;
    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError>;
    /// Bytes that one [`StateCopy`] takes.
    fn state_bytes(&self) -> usize;
    /// A page's keys and values in all attention layers, for the disk tier and for tests.
    fn page_save(&self, page: Page) -> Box<[u8]>;
    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError>;
    /// Copies a page that is about to be written while others still read it.
    fn page_copy(&mut self, from: Page, to: Page);
}

/// A model on a device.
pub struct Runner<D: Device> {
    pub config: ModelConfig,
    pub device: D,
    buffers: Activations<D::Buffer>,
    next: Next,
}

/// What [`NEXT`] stands for in the next pass.
enum Next {
    Nothing,
    /// The device has so many tokens for it.
    OnDevice(usize),
    /// The device chose them at once, or the host did.
    Known(Vec<u32>),
}

impl Next {
    fn rows(&self) -> usize {
        match self {
            Next::Nothing => 0,
            Next::OnDevice(rows) => *rows,
            Next::Known(tokens) => tokens.len(),
        }
    }
}

impl<D: Device> Runner<D> {
    pub fn new(config: ModelConfig, mut device: D) -> Result<Self, ModelError> {
        let buffers = device.activations()?;
        Ok(Runner { config, device, buffers, next: Next::Nothing })
    }

    /// Runs one batch, or queues it where the device works by itself: whatever is asked of the device afterwards sees it
    /// done. Refuses a batch that is out of range without touching any state.
    pub fn run(&mut self, batch: &Batch<'_>) -> Result<(), ModelError> {
        self.check(batch)?;
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Known(tokens) => self.compute(&Batch { spans: &in_place_of_next(batch, &tokens) }),
            Next::Nothing | Next::OnDevice(_) => self.compute(batch),
        }
    }

    fn compute(&mut self, batch: &Batch<'_>) -> Result<(), ModelError> {
        self.device.stage(batch);
        forward(&self.config, &mut self.device, &mut self.buffers, batch.rows());
        self.device.finish()
    }

    /// Chooses one token for each logit row of the last pass. The pass after may have [`NEXT`] for them; on a device that
    /// chooses by itself it can be queued before [`Runner::chosen`] tells the host what they are.
    pub fn queue_select(&mut self, selections: &[Selection]) -> Result<Choice, ModelError> {
        self.next = Next::Nothing;
        if let Some(ticket) = self.device.queue_select(selections)? {
            self.next = Next::OnDevice(selections.len());
            return Ok(Choice::Queued(ticket));
        }
        let tokens = self.device.select(selections)?;
        self.next = Next::Known(tokens.clone());
        Ok(Choice::Made(tokens))
    }

    /// The tokens of a choice. Waits for it, but not for passes queued since; see [`Device::chosen`] for errors.
    pub fn chosen(&mut self, choice: Choice) -> Result<Vec<u32>, ModelError> {
        match choice {
            Choice::Made(tokens) => Ok(tokens),
            Choice::Queued(ticket) => self.device.chosen(ticket),
        }
    }

    fn check(&self, batch: &Batch<'_>) -> Result<(), ModelError> {
        let capacity = self.device.capacity();
        let (rows, logit_rows) = (batch.rows(), batch.logit_rows().len());
        if rows == 0 || rows > capacity.rows || logit_rows > capacity.logit_rows {
            return refuse(format!(
                "{rows} rows, {logit_rows} with logits; the device has room for {} and {}, and a pass has at least one",
                capacity.rows, capacity.logit_rows
            ));
        }
        let mut row = 0;
        for (at, span) in batch.spans.iter().enumerate() {
            self.check_span(at, span, &batch.spans[..at], &capacity)?;
            self.check_tokens(at, span, row)?;
            row += span.tokens.len();
        }
        Ok(())
    }

    /// `row`: the span's first row in the pass.
    fn check_tokens(&self, at: usize, span: &Span<'_>, row: usize) -> Result<(), ModelError> {
        if span.tokens == [NEXT] {
            let chosen = self.next.rows();
            return if row < chosen {
                Ok(())
            } else {
                refuse(format!("the token chosen for row {row} in span {at}; {chosen} were chosen"))
            };
        }
        match span.tokens.iter().find(|&&token| token as usize >= self.config.vocab) {
            Some(&NEXT) => refuse(format!("a chosen token among others in span {at}; it stands alone")),
            Some(token) => refuse(format!("token {token} in span {at}; the vocabulary has {}", self.config.vocab)),
            None => Ok(()),
        }
    }

    fn check_span(&self, at: usize, span: &Span<'_>, before: &[Span<'_>], capacity: &Capacity) -> Result<(), ModelError> {
        let end = span.start.saturating_add(span.tokens.len());
        let (slot, held) = (span.slot.0, span.pages.len() * PAGE_TOKENS);
        if span.tokens.is_empty() {
            return refuse(format!("span {at} has no tokens"));
        }
        if slot as usize >= capacity.slots {
            return refuse(format!("span {at} names slot {slot}; there are {}", capacity.slots));
        }
        if before.iter().any(|other| other.slot == span.slot) {
            return refuse(format!("span {at} names slot {slot}, which another span of the batch owns"));
        }
        if held < end {
            return refuse(format!("span {at} ends at position {end}; its {} pages hold {held}", span.pages.len()));
        }
        if let Some(page) = span.pages.iter().find(|page| page.0 as usize >= capacity.pages) {
            return refuse(format!("span {at} names page {}; there are {}", page.0, capacity.pages));
        }
        if let Some(page) = written(span).iter().find(|page| before.iter().any(|other| written(other).contains(page))) {
            return refuse(format!("span {at} writes page {}, which another span of the batch writes too", page.0));
        }
        if end > self.config.context_max {
            return refuse(format!("span {at} ends at position {end}; the model's context is {}", self.config.context_max));
        }
        Ok(())
    }
}

fn refuse(what: String) -> Result<(), ModelError> {
    Err(ModelError::Batch(what))
}

/// The same spans, with tokens where [`NEXT`] was.
fn in_place_of_next<'a>(batch: &Batch<'a>, tokens: &'a [u32]) -> Vec<Span<'a>> {
    let mut row = 0;
    let known = |span: &Span<'a>| {
        let at = row;
        row += span.tokens.len();
        if span.tokens == [NEXT] { Span { tokens: &tokens[at..at + 1], ..*span } } else { *span }
    };
    batch.spans.iter().map(known).collect()
}

/// The pages that a checked span's rows fall into.
fn written<'a>(span: &Span<'a>) -> &'a [Page] {
    &span.pages[span.start / PAGE_TOKENS..(span.start + span.tokens.len()).div_ceil(PAGE_TOKENS)]
}
