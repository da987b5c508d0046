//! The second half of a turn: what a finished pass means for each sequence of its batch. Positions worth
//! keeping are saved, next tokens are chosen and sent, and whoever is done ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use lily_model::{Device, Selection};

use crate::scheduler::{Part, Scheduler};
use crate::sequence::Sequence;
use crate::{EngineError, Event, Finish, sampling};

/// How the next token of a sequence is found.
enum Choice {
    Select(Selection),
    Forced(u32),
}

impl<D: Device> Scheduler<D> {
    pub(crate) fn deliver(&mut self, parts: &[Part]) {
        parts.iter().for_each(|&part| self.advance(part));

        // The sequences that got logits, in the order of the batch's logit rows.
        let complete: Vec<u64> = parts.iter().map(|part| part.id).filter(|&id| self.sequence(id).pending() == 0).collect();
        let vocab = self.runner.config.vocab;
        let choices: Vec<Result<Choice, EngineError>> = complete.iter().map(|&id| choose(self.sequence(id), vocab)).collect();
        let selections: Vec<Selection> = choices
            .iter()
            .map(|choice| if let Ok(Choice::Select(selection)) = choice { selection.clone() } else { Selection::greedy() })
            .collect();
        let selected = match self.runner.device.select(&selections) {
            Ok(selected) => selected,
            Err(error) => {
                tracing::error!(%error, "the choice of tokens failed");
                let error = Arc::new(EngineError::Model(error));
                return complete.into_iter().for_each(|id| self.fail(id, error.clone()));
            }
        };
        for (row, (id, choice)) in complete.into_iter().zip(choices).enumerate() {
            match choice {
                Ok(Choice::Select(_)) => self.emit(id, row, selected[row]),
                Ok(Choice::Forced(token)) => self.emit(id, row, token),
                Err(error) => self.fail(id, Arc::new(error)),
            }
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

    /// Appends a token to a sequence, tells its caller, and ends it where it has to end.
    fn emit(&mut self, id: u64, row: usize, token: u32) {
        if self.sequence(id).generated_max == 0 {
            return self.finish(id, Finish::Length);
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
        self.stats.generated_tokens += 1;
        let _ = sequence.events.send(Event::Token { id: token, logprobs });

        if let Some(constraint) = &mut sequence.constraint
            && let Err(error) = guarded(|| constraint.accept(token))
        {
            return self.fail(id, Arc::new(error));
        }
        if sequence.stop_tokens.contains(&token) {
            self.finish(id, Finish::Stop);
        } else if sequence.generated() == sequence.generated_max {
            self.finish(id, Finish::Length);
        }
    }
}

fn choose(sequence: &mut Sequence, vocab: usize) -> Result<Choice, EngineError> {
    let mut allowed = None;
    if let Some(constraint) = &mut sequence.constraint {
        if let Some(token) = guarded(|| constraint.forced())? {
            let known = (token as usize) < vocab;
            return if known { Ok(Choice::Forced(token)) } else { Err(unknown_forced(token, vocab)) };
        }
        allowed = guarded(|| constraint.allowed())?.map(|mask| fitted(mask, vocab)).transpose()?;
    }
    Ok(Choice::Select(sequence.sampler.selection(&sequence.tokens, allowed)))
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
