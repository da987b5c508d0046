//! Choosing tokens where the logits are: what `kernels/select.metal` needs, and which selections it can serve.

use std::collections::{BTreeMap, VecDeque};

use lily_model::{ModelConfig, ModelError, Selection, Ticket};

use crate::backend::{Backend, PENDING_MAX, Pending};
use crate::commands::{CommandList, View};
use crate::launch::{SelectLargest, SelectToken};

/// Logits of one threadgroup of `select_largest`.
const SLICE: usize = 2048;
/// Most tokens that a draw may look at on the device.
const KEEP_MAX: usize = 64;
/// Tokens of one row whose logits may change.
const BIAS_MAX: usize = 1024;
/// Bytes of a row's rule.
const RULE_BYTES: usize = 32;
const THREADS: u32 = 128;

/// Buffers of the selection, for a few rows.
#[derive(Debug)]
pub(crate) struct SelectBuffers {
    rules: View,
    bias: View,
    allowed: View,
    found: View,
    pub chosen: View,
    rows: usize,
    vocab: usize,
    /// What `rules` holds: greedy rules stay the same step after step.
    sent: Vec<u8>,
}

/// What a recorded choice depends on beside device buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectShape {
    rows: usize,
    /// Candidates that a draw looks at.
    keep: u32,
    /// The next pass of few rows gets the tokens.
    hands_over: bool,
}

impl SelectShape {
    pub fn new(selections: &[Selection], hands_over: bool) -> Self {
        let draws = |selection: &&Selection| selection.temperature > 0.0;
        let keep = selections.iter().filter(draws).map(|selection| selection.top_k).max().unwrap_or(1) as u32;
        SelectShape { rows: selections.len(), keep, hands_over }
    }
}

impl SelectBuffers {
    pub fn new(
        view: &mut impl FnMut(usize, &str) -> Result<View, ModelError>,
        config: &ModelConfig,
        rows: usize,
    ) -> Result<Self, ModelError> {
        let (vocab, parts) = (config.vocab, config.vocab.div_ceil(SLICE));
        Ok(SelectBuffers {
            rules: view(RULE_BYTES * rows, "rules of selection")?,
            bias: view(16 * BIAS_MAX * rows, "biases of selection")?,
            allowed: view(4 * vocab.div_ceil(32) * rows, "allowed tokens")?,
            found: view(8 * rows * parts * KEEP_MAX, "candidates")?,
            chosen: view(4 * rows, "chosen tokens")?,
            rows,
            vocab,
            sent: Vec::new(),
        })
    }

    /// Whether the device can carry these out; the host does the rest.
    pub fn serves(&self, selections: &[Selection]) -> bool {
        let parts_fit = self.vocab.div_ceil(SLICE) <= 4 * THREADS as usize;
        let one = |selection: &Selection| {
            let changed = selection.bias.len() + selection.repeated.len();
            let draws = selection.temperature > 0.0;
            changed <= BIAS_MAX && (!draws || (1..=KEEP_MAX).contains(&selection.top_k))
        };
        parts_fit && selections.len() <= self.rows && selections.iter().all(one)
    }

    /// Queues the rules of a choice. Afterwards its launches may run.
    pub fn write(&mut self, backend: &mut impl Backend, selections: &[Selection]) {
        let words = self.vocab.div_ceil(32);
        let mut rules = Vec::with_capacity(RULE_BYTES * selections.len());
        for (row, selection) in selections.iter().enumerate() {
            let changes = changes(selection);
            if !changes.is_empty() {
                backend.write(self.bias.part(16 * BIAS_MAX * row, changes.len()), &changes);
            }
            if let Some(allowed) = &selection.allowed {
                let bits: Vec<u8> = (0..words).flat_map(|at| allowed.get(at).copied().unwrap_or(0).to_le_bytes()).collect();
                backend.write(self.allowed.part(4 * words * row, bits.len()), &bits);
            }
            let numbers = [selection.temperature, selection.top_p, selection.min_p, selection.draw, selection.repetition_penalty];
            rules.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            let counts = [selection.top_k as u32, changes.len() as u32 / 16, u32::from(selection.allowed.is_some())];
            rules.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        }
        if rules != self.sent {
            backend.write(self.rules.part(0, rules.len()), &rules);
            self.sent = rules;
        }
    }

    /// Forgets what the device holds: queued work was lost.
    pub fn forget(&mut self) {
        self.sent.clear();
    }

    /// Records the launches: the tokens are in `chosen` afterwards, and in `tokens` if the shape hands them over.
    pub fn record(&self, list: &mut CommandList, shape: SelectShape, logits: View, tokens: View) {
        let SelectShape { rows, keep, hands_over } = shape;
        let parts = self.vocab.div_ceil(SLICE);
        let SelectBuffers { rules, bias, allowed, found, chosen, .. } = *self;
        SelectLargest {
            entry: "select_largest",
            logits,
            rules,
            bias,
            allowed,
            found,
            vocab: self.vocab as u32,
            parts: parts as u32,
            keep,
            bias_max: BIAS_MAX as u32,
            allowed_words: self.vocab.div_ceil(32) as u32,
            grid: [parts, rows, 1],
            threads: THREADS,
        }
        .launch("select", list);
        SelectToken {
            entry: "select_token",
            found,
            rules,
            chosen,
            tokens: if hands_over { tokens } else { bias }, // bound, not written
            parts: parts as u32,
            keep,
            hands_over: u32::from(hands_over),
            grid: [rows, 1, 1],
            threads: THREADS,
        }
        .launch("select", list);
    }
}

/// Choices whose tokens the host has not read yet.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    issued: u64,
    /// Those below are lost with an earlier one.
    lost: u64,
    pending: VecDeque<(u64, Pending)>,
}

impl Tickets {
    pub fn issue(&mut self, pending: Pending) -> Ticket {
        self.issued += 1;
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((self.issued - 1, pending));
        Ticket(self.issued - 1)
    }

    /// # Errors
    /// A ticket that was taken before, is too old, or belongs to a choice that was lost.
    pub fn take(&mut self, ticket: Ticket) -> Result<Pending, ModelError> {
        let at = self.pending.iter().position(|(number, _)| *number == ticket.0);
        match at.and_then(|at| self.pending.remove(at)) {
            Some(_) if ticket.0 < self.lost => Err(ModelError::Device("the step before this one failed".into())),
            Some((_, pending)) => Ok(pending),
            None => {
                let found = ticket.0;
                Err(ModelError::Device(format!("expected one of the last {PENDING_MAX} choices, not read yet, found number {found}")))
            }
        }
    }

    /// Work was lost: what has been issued so far has no tokens.
    pub fn lose(&mut self) {
        self.lost = self.issued;
    }
}

/// Tokens whose logits change, each once: token, whether the repetition penalty applies, what is added.
fn changes(selection: &Selection) -> Vec<u8> {
    let mut entries: BTreeMap<u32, (bool, f32)> = BTreeMap::new();
    if selection.repetition_penalty != 1.0 {
        entries.extend(selection.repeated.iter().map(|&token| (token, (true, 0.0))));
    }
    for &(token, bias) in &selection.bias {
        entries.entry(token).or_default().1 += bias;
    }
    let words = |(token, (repeated, bias)): (u32, (bool, f32))| [token, u32::from(repeated), bias.to_bits(), 0];
    entries.into_iter().flat_map(words).flat_map(u32::to_le_bytes).collect()
}
