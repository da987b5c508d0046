//! A device whose state is integers and whose logits are a pure function of all tokens before: any mistake
//! with slots, pages, copies, positions or order changes the tokens. [`continuation`] says what it must
//! answer, from the tokens alone.
//!
//! The recurrent state of a slot is a hash that takes in each token together with three earlier entries of
//! the KV pages; the logits hash that state with every entry of the sequence.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lily_engine::{Event, Finish, Generation, Request, Sampling, Usage};
use lily_model::{
    Activations, Batch, Capacity, Device, LayerKind, Logits, ModelConfig, ModelError, NEXT, NormSite, PAGE_TOKENS, Page, Runner, Selection,
    Slot, StateCopy, Steps, Ticket, select_token,
};

pub const VOCAB: usize = 97;

/// Bytes of one KV page by the engine's reckoning, and of a state copy: as much as 12 pages, like the real model's.
pub const PAGE_BYTES: usize = PAGE_TOKENS * 2 * 2 * 2;
pub const STATE_BYTES: usize = 12 * PAGE_BYTES;

/// What a test can see and steer of a device that the engine owns.
pub struct Probe {
    /// The spans of every pass: (rows, position of the first, logits).
    pub passes: Mutex<Vec<Vec<(usize, usize, bool)>>>,
    pub page_copies: AtomicUsize,
    /// The next pass fails.
    pub fail_next: AtomicBool,
    /// The next pass panics.
    pub panic_next: AtomicBool,
    /// The device chooses tokens by itself and hands them to the next pass.
    pub by_itself: AtomicBool,
    /// The pass with this number fails, and only its tokens tell.
    pub fail_in_flight: AtomicUsize,
    /// Rows that were queued before the host knew their tokens.
    pub rows_ahead: AtomicUsize,
    /// How many passes there may be; the next one waits.
    passes_max: AtomicUsize,
}

impl Default for Probe {
    fn default() -> Self {
        Probe {
            passes: Mutex::default(),
            page_copies: AtomicUsize::new(0),
            fail_next: AtomicBool::new(false),
            panic_next: AtomicBool::new(false),
            by_itself: AtomicBool::new(false),
            fail_in_flight: AtomicUsize::new(usize::MAX),
            rows_ahead: AtomicUsize::new(0),
            passes_max: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Probe {
    /// Of a device that works ahead.
    pub fn by_itself() -> Arc<Self> {
        Arc::new(Probe { by_itself: AtomicBool::new(true), ..Probe::default() })
    }

    /// The pass that comes next waits for [`Probe::allow`] or [`Probe::go_on`].
    pub fn hold(&self) {
        self.allow(0);
    }

    /// Lets so many passes happen in all.
    pub fn allow(&self, passes: usize) {
        self.passes_max.store(passes, Ordering::SeqCst);
    }

    /// Lets so many further passes happen.
    pub fn allow_more(&self, passes: usize) {
        self.allow(self.passes.lock().unwrap().len() + passes);
    }

    pub fn go_on(&self) {
        self.allow(usize::MAX);
    }

    /// Rows computed so far.
    pub fn rows(&self) -> usize {
        self.passes.lock().unwrap().iter().flatten().map(|span| span.0).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct State {
    hash: u64,
    /// Tokens taken in.
    length: usize,
}

pub struct FakeDevice {
    capacity: Capacity,
    slots: Vec<State>,
    pages: Vec<[u64; PAGE_TOKENS]>,
    logits: Vec<Vec<f32>>,
    failed: bool,
    /// A pass has failed that nobody has heard of.
    broken: bool,
    /// Tokens of the choices in flight, oldest first, and which of them stand for [`NEXT`].
    queued: VecDeque<(Ticket, Option<Vec<u32>>)>,
    handed: Vec<u32>,
    tickets: u64,
    probe: Arc<Probe>,
}

impl FakeDevice {
    /// Slots and pages begin full of rubbish.
    pub fn new(capacity: Capacity, probe: Arc<Probe>) -> Self {
        let slots = (0..capacity.slots as u64).map(|slot| State { hash: mix(slot, 99), length: 12345 }).collect();
        let pages = (0..capacity.pages as u64).map(|page| [mix(page, 98); PAGE_TOKENS]).collect();
        FakeDevice {
            capacity,
            slots,
            pages,
            logits: Vec::new(),
            failed: false,
            broken: false,
            queued: VecDeque::new(),
            handed: Vec::new(),
            tickets: 0,
            probe,
        }
    }

    pub fn runner(capacity: Capacity, probe: Arc<Probe>) -> Runner<FakeDevice> {
        Runner::new(config(), FakeDevice::new(capacity, probe)).unwrap()
    }

    fn entry(&self, pages: &[Page], position: usize) -> u64 {
        self.pages[pages[position / PAGE_TOKENS].0 as usize][position % PAGE_TOKENS]
    }
}

pub fn config() -> ModelConfig {
    ModelConfig {
        hidden: 8,
        vocab: VOCAB,
        layers: vec![LayerKind::Delta, LayerKind::Attention],
        context_max: 100_000,
        rms_eps: 1e-6,
        heads_q: 1,
        heads_kv: 1,
        head_dim: 2,
        rotary_dim: 2,
        rope_theta: 1e4,
        heads_k: 1,
        heads_v: 1,
        dim_k: 1,
        dim_v: 1,
        conv_width: 4,
        experts: 1,
        experts_per_token: 1,
        expert_width: 1,
        shared_width: 1,
        eos: vec![0],
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut word = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 29)
}

fn entry_of(token: u32, position: usize) -> u64 {
    mix(token as u64 + 1, position as u64 + 7)
}

/// The recurrent step; `entry` gives the KV entry of a position up to this one.
fn step(state: State, token: u32, entry: impl Fn(usize) -> u64) -> State {
    let at = state.length;
    let read = [at, at / 2, at.saturating_sub(1)].into_iter().fold(0, |hash, position| mix(hash, entry(position)));
    State { hash: mix(mix(state.hash, token as u64), read), length: at + 1 }
}

fn logits_of(state: State, entry: impl Fn(usize) -> u64) -> Vec<f32> {
    let all = (0..state.length).fold(state.hash, |hash, position| mix(hash, entry(position)));
    (0..VOCAB as u64).map(|token| (mix(all, token) >> 44) as f32 / 65536.0).collect()
}

/// The model, computed from the tokens and nothing else.
#[derive(Default)]
struct Truth {
    entries: Vec<u64>,
    state: State,
}

impl Truth {
    fn take(&mut self, token: u32) {
        self.entries.push(entry_of(token, self.entries.len()));
        self.state = step(self.state, token, |position| self.entries[position]);
    }

    fn logits(&self) -> Vec<f32> {
        logits_of(self.state, |position| self.entries[position])
    }
}

pub fn logits_after(tokens: &[u32]) -> Vec<f32> {
    let mut truth = Truth::default();
    tokens.iter().for_each(|&token| truth.take(token));
    truth.logits()
}

/// The greedy continuation of a prompt.
pub fn continuation(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut truth = Truth::default();
    prompt.iter().for_each(|&token| truth.take(token));
    (0..count)
        .map(|_| {
            let token = select_token(&truth.logits(), &Selection::greedy());
            truth.take(token);
            token
        })
        .collect()
}

impl Steps for FakeDevice {
    type Buffer = ();

    fn activations(&mut self) -> Result<Activations<()>, ModelError> {
        Ok(Activations { residual: (), normed: (), projected: (), mixed: (), routes: (), expert_hidden: () })
    }

    /// Computes everything; the steps below have nothing left to do.
    fn stage(&mut self, batch: &Batch<'_>) {
        while self.probe.passes.lock().unwrap().len() >= self.probe.passes_max.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!self.probe.panic_next.swap(false, Ordering::SeqCst), "asked to panic");
        self.failed = self.probe.fail_next.swap(false, Ordering::SeqCst);
        let spans = batch.spans.iter().map(|span| (span.tokens.len(), span.start, span.logits != Logits::None)).collect();
        let number = {
            let mut passes = self.probe.passes.lock().unwrap();
            passes.push(spans);
            passes.len() - 1
        };
        self.broken |= number == self.probe.fail_in_flight.load(Ordering::SeqCst);
        self.logits.clear();
        let handed = std::mem::take(&mut self.handed);
        let mut row = 0;
        for span in batch.spans {
            // A token that the host did not know is that of this row.
            let ahead = span.tokens == [NEXT];
            self.probe.rows_ahead.fetch_add(usize::from(ahead), Ordering::SeqCst);
            let tokens = if ahead { &handed[row..row + 1] } else { span.tokens };
            row += span.tokens.len();
            let mut state = self.slots[span.slot.0 as usize];
            assert_eq!(state.length, span.start, "slot {} stands at another position", span.slot.0);
            for &token in tokens {
                let (page, offset) = (span.pages[state.length / PAGE_TOKENS], state.length % PAGE_TOKENS);
                self.pages[page.0 as usize][offset] = entry_of(token, state.length);
                state = step(state, token, |position| self.entry(span.pages, position));
            }
            self.slots[span.slot.0 as usize] = state;
            if span.logits != Logits::None {
                self.logits.push(logits_of(state, |position| self.entry(span.pages, position)));
            }
        }
    }

    fn embed(&mut self, _: usize, _: &mut ()) {}
    fn norm(&mut self, _: NormSite, _: usize, _: &(), _: &mut ()) {}
    fn delta_project(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn delta_update(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn attn_project(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn attn_prepare(&mut self, _: usize, _: usize, _: &mut ()) {}
    fn attn_mix(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn mixer_output(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn moe_route(&mut self, _: usize, _: usize, _: &(), _: &mut ()) {}
    fn moe_gate_up(&mut self, _: usize, _: usize, _: &(), _: &(), _: &mut ()) {}
    fn moe_down(&mut self, _: usize, _: usize, _: &(), _: &(), _: &mut ()) {}
    fn head(&mut self, _: usize, _: &()) {}

    fn read(&self, _: &(), _: usize) -> Vec<f32> {
        Vec::new()
    }

    fn write(&mut self, _: &mut (), _: usize, _: &[f32]) {}

    fn flush(&mut self) -> Result<(), ModelError> {
        if std::mem::take(&mut self.broken) { Err(ModelError::Device("failed in flight".into())) } else { Ok(()) }
    }
}

impl Device for FakeDevice {
    fn name(&self) -> String {
        "fake".into()
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        if self.failed { Err(ModelError::Device("asked to fail".into())) } else { Ok(()) }
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        assert_eq!(selections.len(), self.logits.len());
        Ok(self.logits.iter().zip(selections).map(|(logits, selection)| select_token(logits, selection)).collect())
    }

    fn queue_select(&mut self, selections: &[Selection]) -> Result<Option<Ticket>, ModelError> {
        if !self.probe.by_itself.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let tokens = self.select(selections)?;
        self.handed = if self.broken { vec![0; tokens.len()] } else { tokens.clone() };
        self.queued.push_back((Ticket(self.tickets), (!self.broken).then_some(tokens)));
        self.tickets += 1;
        assert!(self.queued.len() <= 2, "more than two passes are in flight");
        Ok(Some(Ticket(self.tickets - 1)))
    }

    fn chosen(&mut self, ticket: Ticket) -> Result<Vec<u32>, ModelError> {
        let (oldest, tokens) = self.queued.pop_front().expect("a choice is queued");
        assert_eq!(ticket, oldest, "choices are read in order");
        tokens.ok_or_else(|| {
            self.broken = false;
            self.queued.clear();
            ModelError::Device("failed in flight".into())
        })
    }

    fn state_clear(&mut self, slot: Slot) {
        self.slots[slot.0 as usize] = State::default();
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        assert!(!self.broken, "a state is kept before its pass is known to have succeeded");
        let State { hash, length } = self.slots[slot.0 as usize];
        let mut bytes = [hash.to_le_bytes(), (length as u64).to_le_bytes()].concat();
        bytes.resize(STATE_BYTES, 0);
        StateCopy(bytes.into())
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        let word = |at: usize| u64::from_le_bytes(copy.0[at..at + 8].try_into().unwrap());
        self.slots[slot.0 as usize] = State { hash: word(0), length: word(8) as usize };
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        STATE_BYTES
    }

    fn page_save(&self, page: Page) -> Box<[u8]> {
        self.pages[page.0 as usize].iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        for (entry, bytes) in self.pages[page.0 as usize].iter_mut().zip(bytes.chunks_exact(8)) {
            *entry = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        Ok(())
    }

    fn page_copy(&mut self, from: Page, to: Page) {
        self.probe.page_copies.fetch_add(1, Ordering::SeqCst);
        self.pages[to.0 as usize] = self.pages[from.0 as usize];
    }
}

/// A greedy request without stop tokens.
pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        sampling: Sampling::default(),
        max_tokens: Some(max_tokens),
        stop_tokens: Arc::new([]),
        logprobs: None,
        constraint: None,
        keep_at: Vec::new(),
    }
}

/// What a whole generation said.
#[derive(Debug)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub cached: usize,
    pub end: Result<(Finish, Usage), String>,
}

impl Answer {
    pub fn usage(&self) -> &Usage {
        &self.end.as_ref().expect("a finished answer").1
    }
}

/// Hears a generation to its end, checking the order of its events.
pub fn hear(mut generation: Generation) -> Answer {
    let (mut tokens, mut cached, mut prefilled) = (Vec::new(), None, 0);
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Started { cached_tokens, .. } => assert!(cached.replace(cached_tokens).is_none() && tokens.is_empty()),
            Event::Prefilled { done, total } => {
                assert!(done > prefilled && done <= total && tokens.is_empty() && cached.is_some());
                prefilled = done;
            }
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason, usage } => {
                assert!(generation.next_blocking().is_none());
                assert_eq!((usage.generated_tokens, Some(usage.cached_tokens)), (tokens.len(), cached));
                return Answer { tokens, cached: cached.unwrap_or(0), end: Ok((reason, usage)) };
            }
            Event::Failed(error) => {
                assert!(generation.next_blocking().is_none());
                return Answer { tokens, cached: cached.unwrap_or(0), end: Err(error.to_string()) };
            }
        }
    }
    unreachable!("a generation ends with Finished or Failed")
}

/// Random numbers for tests.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0, self.0 >> 31) >> 16) as usize % limit
    }

    pub fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(VOCAB) as u32).collect()
    }
}
