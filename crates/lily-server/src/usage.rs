//! What an answer cost: tokens and times, measured here so that an answer that was cut short has them too.

use std::time::{Duration, Instant};

use lily_engine::Usage;
use serde_json::{Value, json};

use crate::generate::FinishReason;

/// Watches one answer.
pub(crate) struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    reasoning_tokens: usize,
}

/// Figures of a finished answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    /// Prompt tokens whose state came from the cache.
    pub cached_tokens: usize,
    /// Generated tokens, thinking and a final stop token included.
    pub generated_tokens: usize,
    pub reasoning_tokens: usize,
    pub queued: Duration,
    pub prefill: Duration,
    pub decode: Duration,
}

impl Clock {
    pub fn start(prompt_tokens: usize) -> Self {
        Clock {
            submitted: Instant::now(),
            started: None,
            first_token: None,
            last_token: None,
            prompt_tokens,
            cached_tokens: 0,
            generated_tokens: 0,
            reasoning_tokens: 0,
        }
    }

    /// The request has a slot.
    pub fn started(&mut self, cached_tokens: usize) {
        self.cached_tokens = cached_tokens;
        self.started.get_or_insert_with(Instant::now);
    }

    /// A token came: the time since the one before, or since the request for the first.
    pub fn token(&mut self, reasoning: bool) -> TokenWait {
        let now = Instant::now();
        self.generated_tokens += 1;
        self.reasoning_tokens += usize::from(reasoning);
        let wait = match self.last_token {
            Some(last) => TokenWait::Next(now - last),
            None => TokenWait::First(now - self.submitted),
        };
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        wait
    }

    /// The figures so far; `usage` is the engine's own account where the answer ran to its end.
    pub fn outcome(&self, reason: FinishReason, usage: Option<Usage>) -> Outcome {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        let usage = usage.unwrap_or_else(|| Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated_tokens,
            queued: started - self.submitted,
            prefill: first.saturating_duration_since(started),
            decode: now.saturating_duration_since(first),
        });
        Outcome {
            reason,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            generated_tokens: usage.generated_tokens,
            reasoning_tokens: self.reasoning_tokens,
            queued: usage.queued,
            prefill: usage.prefill,
            decode: usage.decode,
        }
    }
}

/// How long a token took to come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenWait {
    First(Duration),
    Next(Duration),
}

/// The sum over a request's choices: a prompt that several choices share counts once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Total {
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    reasoning_tokens: usize,
    prefill: Duration,
    decode: Duration,
}

impl Total {
    /// Adds one choice; `shares_prompt` unless it is its prompt's first.
    pub fn add(&mut self, outcome: &Outcome, shares_prompt: bool) {
        if !shares_prompt {
            self.prompt_tokens += outcome.prompt_tokens;
            self.cached_tokens += outcome.cached_tokens;
            self.prefill += outcome.prefill;
        }
        self.generated_tokens += outcome.generated_tokens;
        self.reasoning_tokens += outcome.reasoning_tokens;
        // Choices decode side by side.
        self.decode = self.decode.max(outcome.decode);
    }

    /// OpenAI's `usage`.
    pub fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        })
    }

    /// llama.cpp's `timings`: `prompt_n` counts the tokens that were computed.
    pub fn timings(&self) -> Value {
        let computed = self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens);
        let (prompt_ms, predicted_ms) = (self.prefill.as_secs_f64() * 1e3, self.decode.as_secs_f64() * 1e3);
        json!({
            "cache_n": self.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": ratio(prompt_ms, computed as f64),
            "prompt_per_second": ratio(computed as f64 * 1e3, prompt_ms),
            "predicted_n": self.generated_tokens,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": ratio(predicted_ms, self.generated_tokens as f64),
            "predicted_per_second": ratio(self.generated_tokens as f64 * 1e3, predicted_ms),
        })
    }
}

/// JSON has no infinity: nothing per nothing is 0.
fn ratio(amount: f64, per: f64) -> f64 {
    if per > 0.0 { amount / per } else { 0.0 }
}
