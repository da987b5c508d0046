//! A device that says what a test wrote down.
//!
//! Its "recurrent state" is the list of tokens that a slot has seen, so the next token is a pure function
//! of what the engine fed it: a wrong slot, a lost or doubled token, or a bad state copy changes answers or
//! trips an assertion.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use lily_model::{
    Activations, Batch, Capacity, Device, Logits, ModelConfig, ModelError, NormSite, Page, Selection, Slot, StateCopy, Steps, select_token,
};
use lily_text::Text;

/// What the model says to prompts that contain `key`.
#[derive(Clone, Default)]
pub struct Script {
    /// In the last message; or, without chat markup, the whole prompt.
    pub key: String,
    /// For each place of the answer the tokens that are equally likely there; usually one.
    pub answer: Vec<Vec<u32>>,
    /// The pass that chooses this token fails.
    pub fails_at: Option<usize>,
    /// The pass that chooses this token waits for the gate.
    pub waits_at: Option<(usize, Arc<Gate>)>,
}

/// Holds the device until it is opened.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *lock(&self.open) = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let mut open = lock(&self.open);
        while !*open {
            open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub type Scripts = Arc<Mutex<Vec<Script>>>;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct ScriptedDevice {
    text: Arc<Text>,
    scripts: Scripts,
    vocab: usize,
    capacity: Capacity,
    slots: Vec<Vec<u32>>,
    /// Of the staged pass: the history behind each logit row.
    asked: Vec<Vec<u32>>,
    logits: Vec<Vec<f32>>,
    /// What the chat format puts before an answer: longest first.
    openings: Vec<Vec<u32>>,
}

/// Logits of the scripted token and of the runner-up, far enough apart for any temperature of the tests.
const CERTAIN: f32 = 100.0;
const RUNNER_UP: f32 = 70.0;

impl ScriptedDevice {
    pub fn new(text: Arc<Text>, scripts: Scripts, config: &ModelConfig, capacity: Capacity) -> Self {
        let encode = |opening: &str| text.encode(opening).expect("markup encodes");
        let header = "<|im_start|>assistant\n";
        let openings = ["<think>\n\n</think>\n\n", "<think>\n", ""].map(|opening| encode(&format!("{header}{opening}")));
        ScriptedDevice {
            openings: openings.into(),
            vocab: config.vocab,
            slots: vec![Vec::new(); capacity.slots],
            capacity,
            asked: Vec::new(),
            logits: Vec::new(),
            text,
            scripts,
        }
    }

    /// The script for a history, and how much of its answer has been said.
    fn script(&self, history: &[u32]) -> (Script, usize) {
        let start = self.text.special().im_start;
        let Some(header) = history.iter().rposition(|&token| token == start) else { return self.raw_script(history) };
        let opening = self.openings.iter().find(|opening| history[header..].starts_with(opening));
        let said = history.len() - header - opening.expect("the last turn is the assistant's").len();
        let asked = self.text.decode(&history[..header]).expect("tokens of the vocabulary");
        let scripts = lock(&self.scripts);
        let last = scripts.iter().filter_map(|script| Some((asked.rfind(&script.key)?, script))).max_by_key(|(at, _)| *at);
        (last.map(|(_, script)| script.clone()).unwrap_or_else(|| self.fallback()), said)
    }

    fn raw_script(&self, history: &[u32]) -> (Script, usize) {
        for script in lock(&self.scripts).iter() {
            let prompt = self.text.encode(&script.key).expect("keys encode");
            if history.starts_with(&prompt) {
                return (script.clone(), history.len() - prompt.len());
            }
        }
        (self.fallback(), 0)
    }

    fn fallback(&self) -> Script {
        Script { answer: vec![vec![self.text.special().im_end]], ..Script::default() }
    }

    fn row(&self, history: &[u32]) -> Result<Vec<f32>, ModelError> {
        let (script, said) = self.script(history);
        if let Some((_, gate)) = script.waits_at.as_ref().filter(|(at, _)| *at == said) {
            gate.wait();
        }
        if script.fails_at == Some(said) {
            return Err(ModelError::Device("the scripted failure".to_owned()));
        }
        let end = vec![self.text.special().im_end];
        let next = script.answer.get(said).unwrap_or(&end);
        let mut logits = vec![0.0; self.vocab];
        logits[(next[0] as usize + 1) % self.vocab] = RUNNER_UP;
        next.iter().for_each(|&token| logits[token as usize] = CERTAIN);
        Ok(logits)
    }
}

impl Device for ScriptedDevice {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        let asked = std::mem::take(&mut self.asked);
        self.logits = asked.iter().map(|history| self.row(history)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        Ok(self.logits.iter().zip(selections).map(|(logits, selection)| select_token(logits, selection)).collect())
    }

    fn state_clear(&mut self, slot: Slot) {
        self.slots[slot.0 as usize].clear();
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        StateCopy(self.slots[slot.0 as usize].iter().flat_map(|token| token.to_le_bytes()).collect())
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        let tokens = copy.0.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        self.slots[slot.0 as usize] = tokens.collect();
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        1024
    }

    fn page_save(&self, _page: Page) -> Box<[u8]> {
        Box::default()
    }

    fn page_load(&mut self, _page: Page, _bytes: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn page_copy(&mut self, _from: Page, _to: Page) {}
}

/// Only staging matters; what a forward pass would compute is in the script.
impl Steps for ScriptedDevice {
    type Buffer = ();

    fn activations(&mut self) -> Result<Activations<()>, ModelError> {
        Ok(Activations { residual: (), normed: (), projected: (), mixed: (), routes: (), expert_hidden: () })
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        self.asked.clear();
        for span in batch.spans {
            let seen = &mut self.slots[span.slot.0 as usize];
            assert_eq!(seen.len(), span.start, "slot {} is fed from the wrong position", span.slot.0);
            seen.extend_from_slice(span.tokens);
            match span.logits {
                Logits::None => {}
                Logits::Last => self.asked.push(seen.clone()),
                Logits::All => (span.start..seen.len()).for_each(|at| self.asked.push(seen[..=at].to_vec())),
            }
        }
    }

    fn embed(&mut self, _rows: usize, _residual: &mut ()) {}
    fn norm(&mut self, _site: NormSite, _rows: usize, _x: &(), _out: &mut ()) {}
    fn delta_project(&mut self, _layer: usize, _rows: usize, _x: &(), _projected: &mut ()) {}
    fn delta_update(&mut self, _layer: usize, _rows: usize, _projected: &(), _mixed: &mut ()) {}
    fn attn_project(&mut self, _layer: usize, _rows: usize, _x: &(), _projected: &mut ()) {}
    fn attn_prepare(&mut self, _layer: usize, _rows: usize, _projected: &mut ()) {}
    fn attn_mix(&mut self, _layer: usize, _rows: usize, _projected: &(), _mixed: &mut ()) {}
    fn mixer_output(&mut self, _layer: usize, _rows: usize, _mixed: &(), _residual: &mut ()) {}
    fn moe_route(&mut self, _layer: usize, _rows: usize, _x: &(), _routes: &mut ()) {}
    fn moe_gate_up(&mut self, _layer: usize, _rows: usize, _x: &(), _routes: &(), _hidden: &mut ()) {}
    fn moe_down(&mut self, _layer: usize, _rows: usize, _routes: &(), _hidden: &(), _residual: &mut ()) {}
    fn head(&mut self, _rows: usize, _residual: &()) {}

    fn read(&self, _buffer: &(), _rows: usize) -> Vec<f32> {
        Vec::new()
    }

    fn write(&mut self, _buffer: &mut (), _rows: usize, _values: &[f32]) {}
}
