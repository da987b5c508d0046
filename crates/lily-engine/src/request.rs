//! What a caller asks of the engine and what it hears back: tokens in, tokens out, never text.

use std::sync::Arc;
use std::time::Duration;

/// How tokens are chosen. `Default` is greedy with no adjustment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of every token already generated.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of every token already generated.
    pub frequency_penalty: f32,
    /// 1 is none; looks at the prompt's and the generated tokens of the last 64 positions.
    pub repetition_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same request, same answer. `None` draws one.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// Restricts which token may come next (structured output, thinking budgets). Runs on the engine's thread.
pub trait Constraint: Send {
    /// One bit per token of the vocabulary, low bits first; `None` allows all.
    fn allowed(&mut self) -> Option<Vec<u32>>;
    /// Told every chosen token.
    fn accept(&mut self, token: u32);
    /// A token that must come next whatever the model says.
    fn forced(&mut self) -> Option<u32> {
        None
    }
}

/// One sequence to generate.
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// Clamped to what the context leaves; `None` is all of it.
    pub max_tokens: Option<usize>,
    /// Generation ends after one of these; it is reported, not counted as content.
    pub stop_tokens: Arc<[u32]>,
    /// Report the log-probability of each token and of this many most probable ones.
    pub logprobs: Option<usize>,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Lengths of prompt prefixes (in tokens) worth keeping the state at: message boundaries. Ascending.
    pub keep_at: Vec<usize>,
}

/// A token with the probabilities around it, natural logarithms, after temperature 1 (before any adjustment).
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub chosen: f32,
    /// Most probable first.
    pub top: Vec<(u32, f32)>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

/// What a finished request cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was taken from the cache.
    pub cached_tokens: usize,
    /// Generated tokens, a final stop token included.
    pub generated_tokens: usize,
    pub queued: Duration,
    pub prefill: Duration,
    pub decode: Duration,
}

/// How the state cache was asked, for whoever wonders why a prompt was computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Tokens that the prompt has in common with some saved prefix: states inside can be used.
    pub common_tokens: usize,
    /// In words: a hit, or why not.
    pub reason: &'static str,
}

/// What a [`crate::Generation`] reports, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request has a slot; prefill begins after `cached_tokens`.
    Started {
        cached_tokens: usize,
        lookup: Lookup,
    },
    /// Prompt tokens done so far.
    Prefilled {
        done: usize,
        total: usize,
    },
    Token {
        id: u32,
        logprobs: Option<Logprobs>,
    },
    Finished {
        reason: Finish,
        usage: Usage,
    },
    /// The engine could not go on with this request; others are not affected.
    Failed(Arc<crate::EngineError>),
}
