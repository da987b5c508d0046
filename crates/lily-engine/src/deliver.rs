//! The second half of a turn: what a finished pass means for each sequence of its batch. Positions worth
//! keeping are saved, next tokens are chosen and sent, and whoever is done ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use lily_model::{Device, Selection};

use crate::ahead::{Flight, NextToken, Row};
use crate::scheduler::{Part, Scheduler};
use crate::sequence::Sequence;
use crate::{EngineError, Event, Finish, sampling};

impl<D: Device> Scheduler<D> {
    pub(crate) fn deliver(&mut self, parts: &[Part]) {
        parts.iter().for_each(|&part| self.advance(part));

        // The sequences that got logits, in the order of the batch's logit rows.
        let complete: Vec<u64> = parts.iter().map(|part| part.id).filter(|&id| self.sequence(id).pending() == 0).collect();
        let vocab = self.runner.config.vocab;
        let (mut rows, mut selections) = (Vec::new(), Vec::new());
        for id in complete {
            let refused = |error| (NextToken::Refused(error), Selection::greedy());
            let (token, selection) = choose(self.sequence(id), vocab).unwrap_or_else(refused);
            rows.push(Row { id, token });
            selections.push(selection);
        }
        match self.runner.queue_select(&selections) {
            Ok(choice) => {
                let flight = Flight { rows, choice };
                if self.may_run_ahead(&flight) {
                    self.flight = Some(flight);
                } else {
                    self.land(flight, None);
                }
            }
            Err(error) => self.lose(&[], error),
        }
    }

    /// A sequence has taken in the rows of its part.
    fn advance(&mut self, part: Part) {
        let pass = self.stats.passes;
        let at = self.running.iter().position(|sequence| sequence.id == part.id).expect("a running sequence");
        let sequence = &mut self.running[at];
        let in_prompt = sequence.first_token.is_none();
        sequence.done += part.rows;
        sequence.served = pass;
        if in_prompt || part.rows > 1 {
            self.stats.prefill_tokens += part.rows as u64;
        }
        if sequence.done.min(sequence.prompt) > sequence.reported {
            sequence.reported = sequence.done.min(sequence.prompt);
            let _ = sequence.events.send(Event::Prefilled { done: sequence.reported, total: sequence.prompt });
        }
        if sequence.keeps.contains(&sequence.done) {
            self.memory.save(sequence, &self.runner.device);
        }
    }

    /// Appends a token to a sequence and tells its caller; says whether it has to end. `row`: where its logits are;
    /// `fed`: a pass that is queued has taken the token in.
    pub(crate) fn append(&mut self, id: u64, row: usize, token: u32, fed: bool) -> Option<Finish> {
        if self.sequence(id).generated_max == 0 {
            return Some(Finish::Length);
        }
        let at = self.running.iter().position(|sequence| sequence.id == id).expect("a running sequence");
        let sequence = &mut self.running[at];
        if sequence.first_token.is_none() {
            sequence.first_token = Some(Instant::now());
            let usage = sequence.usage();
            self.stats.queued += usage.queued;
            self.stats.prefill += usage.prefill;
        }
        let logprobs = sequence.logprobs.map(|top| sampling::logprobs(self.runner.device.logits(row), token, top));
        sequence.tokens.push(token);
        sequence.sampler.accept(token);
        if fed {
            sequence.done += 1;
            sequence.served = self.stats.passes;
        }
        self.stats.generated_tokens += 1;
        let _ = sequence.events.send(Event::Token { id: token, logprobs });

        if let Some(constraint) = &mut sequence.constraint
            && let Err(error) = guarded(|| constraint.accept(token))
        {
            self.fail(id, Arc::new(error));
            return None;
        }
        if sequence.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else {
            (sequence.generated() == sequence.generated_max).then_some(Finish::Length)
        }
    }
}

/// How the next token is found, and the selection for its row: any, where the token is not chosen.
fn choose(sequence: &mut Sequence, vocab: usize) -> Result<(NextToken, Selection), EngineError> {
    let mut allowed = None;
    if let Some(constraint) = &mut sequence.constraint {
        if let Some(token) = guarded(|| constraint.forced())? {
            let known = (token as usize) < vocab;
            return if known { Ok((NextToken::Forced(token), Selection::greedy())) } else { Err(unknown_forced(token, vocab)) };
        }
        allowed = guarded(|| constraint.allowed())?.map(|mask| fitted(mask, vocab)).transpose()?;
    }
    Ok((NextToken::Chosen, sequence.sampler.selection(&sequence.tokens, allowed)))
}

fn unknown_forced(token: u32, vocab: usize) -> EngineError {
    EngineError::Constraint(format!("it forces token {token}; the vocabulary has {vocab}"))
}

/// A mask of exactly the vocabulary's length with at least one token left.
fn fitted(mut mask: Vec<u32>, vocab: usize) -> Result<Vec<u32>, EngineError> {
    mask.resize(vocab.div_ceil(32), 0);
    if !vocab.is_multiple_of(32) {
        *mask.last_mut().expect("a vocabulary has tokens") &= (1 << (vocab % 32)) - 1;
    }
    if mask.iter().all(|&word| word == 0) {
        return Err(EngineError::Constraint("it allows no token".into()));
    }
    Ok(mask)
}

/// Runs a caller's code on the engine's thread: its panic is the caller's failure, not the engine's.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| EngineError::Constraint("it panicked".into()))
}
