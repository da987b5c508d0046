//! Two passes in flight: while the host has yet to read the tokens of one, the next is queued with them in it.
//!
//! That is possible where a device chooses by itself ([`Choice::Queued`]) and nothing about the pass after depends on
//! what the tokens are ([`Scheduler::may_run_ahead`]); else a flight lands before anything else happens. A sequence that
//! turns out to end has then taken in its last token as well: its state is one position further, and recorded as such.

use std::sync::Arc;
use std::time::Instant;

use lily_model::{Batch, Choice, Device, Logits, ModelError, NEXT, Selection, Span};

use crate::disk::DiskTier;
use crate::scheduler::Scheduler;
use crate::{EngineError, Finish};

/// A pass that is queued or done, with the choice of its tokens, which nobody has read.
pub(crate) struct Flight {
    /// In the order of the pass's logit rows.
    pub rows: Vec<Row>,
    pub choice: Choice,
}

/// Whose next token a logit row gives.
pub(crate) struct Row {
    pub id: u64,
    pub token: NextToken,
}

/// How the next token of a sequence is found.
pub(crate) enum NextToken {
    Chosen,
    Forced(u32),
    Refused(EngineError),
}

impl<D: Device> Scheduler<D> {
    /// What is in flight goes on, or lands.
    pub(crate) fn fly(&mut self) {
        if let Some(flight) = self.flight.take() {
            let ahead = self.run_ahead(&flight);
            self.land(flight, ahead);
        }
    }

    /// Whether the pass after a flight can do without its tokens: everyone who runs is in it, goes on whatever they are
    /// and may not want them, and nothing else is to be done in between.
    pub(crate) fn may_run_ahead(&self, flight: &Flight) -> bool {
        let flies = |id: u64| flight.rows.iter().any(|row| row.id == id);
        let nobody_starts = self.waiting.is_empty() || self.memory.slots_free.is_empty();
        let disk_rests = !self.disk.as_ref().is_some_and(DiskTier::is_busy);
        matches!(flight.choice, Choice::Queued(_))
            && nobody_starts
            && disk_rests
            && flight.rows.len() == self.running.len()
            && self.running.iter().all(|sequence| flies(sequence.id) && !sequence.events.is_closed() && sequence.goes_on_unseen())
    }

    /// Queues the pass after a flight, and its choice; `None` if it must land first.
    fn run_ahead(&mut self, flight: &Flight) -> Option<Result<Flight, ModelError>> {
        if !self.may_run_ahead(flight) || !self.grow_all() {
            return None;
        }
        // A row's token is the one chosen in the same row.
        let sequences: Vec<_> = flight.rows.iter().filter_map(|row| self.running.iter().find(|sequence| sequence.id == row.id)).collect();
        let spans: Vec<Span<'_>> = sequences
            .iter()
            .map(|sequence| Span {
                slot: sequence.slot.expect("a running sequence has a slot"),
                start: sequence.done,
                tokens: &[NEXT],
                pages: &sequence.pages,
                logits: Logits::Last,
            })
            .collect();
        let selections: Vec<Selection> = sequences.iter().map(|sequence| sequence.sampler.selection_unseen()).collect();
        let rows = sequences.iter().map(|sequence| Row { id: sequence.id, token: NextToken::Chosen }).collect();
        let queued = self.stats.timed(&Batch { spans: &spans }, |batch| self.runner.run(batch));
        Some(queued.and_then(|()| self.runner.queue_select(&selections)).map(|choice| Flight { rows, choice }))
    }

    /// Pages for one more position of everyone; `false` if somebody would have to give one up.
    fn grow_all(&mut self) -> bool {
        let Scheduler { running, memory, runner, .. } = self;
        running.iter_mut().all(|sequence| memory.grow(sequence, sequence.done + 1, &mut runner.device).is_ok())
    }

    /// Reads the tokens of a flight. `ahead`: the pass after it, which has taken them in, or failed to.
    pub(crate) fn land(&mut self, flight: Flight, ahead: Option<Result<Flight, ModelError>>) {
        let tokens = match self.chosen(flight.choice) {
            Ok(tokens) => tokens,
            Err(error) => return self.lose(&[], error),
        };
        let mut ended: Vec<(u64, Finish)> = Vec::new();
        for (at, row) in flight.rows.into_iter().enumerate() {
            // Its caller may be gone, or the engine closed.
            if !self.running.iter().any(|sequence| sequence.id == row.id) {
                continue;
            }
            let token = match row.token {
                NextToken::Chosen => tokens[at],
                NextToken::Forced(token) => token,
                NextToken::Refused(error) => {
                    self.fail(row.id, Arc::new(error));
                    continue;
                }
            };
            let end = self.append(row.id, at, token, ahead.is_some());
            ended.extend(end.map(|reason| (row.id, reason)));
        }
        match ahead {
            None => ended.into_iter().for_each(|(id, reason)| self.finish(id, reason, true)),
            Some(Ok(next)) if ended.is_empty() => self.flight = Some(next),
            Some(Ok(next)) => self.land_after(next, ended),
            Some(Err(error)) => self.lose(&ended, error),
        }
    }

    fn chosen(&mut self, choice: Choice) -> Result<Vec<u32>, ModelError> {
        let started = Instant::now();
        let tokens = self.runner.chosen(choice);
        self.stats.busy += started.elapsed();
        tokens
    }

    /// Reads the tokens of the pass in which some took in their last one: their states count once it has succeeded.
    fn land_after(&mut self, flight: Flight, ended: Vec<(u64, Finish)>) {
        match self.chosen(flight.choice) {
            Ok(tokens) => {
                ended.into_iter().for_each(|(id, reason)| self.finish(id, reason, true));
                self.land(Flight { rows: flight.rows, choice: Choice::Made(tokens) }, None);
            }
            Err(error) => self.lose(&ended, error),
        }
    }

    /// Queued work failed: who has ended does not care, but nothing of it is kept; whoever else runs may be touched by it.
    pub(crate) fn lose(&mut self, ended: &[(u64, Finish)], error: ModelError) {
        tracing::error!(%error, "a pass failed");
        ended.iter().for_each(|&(id, reason)| self.finish(id, reason, false));
        let error = Arc::new(EngineError::Model(error));
        let rest: Vec<u64> = self.running.iter().map(|sequence| sequence.id).collect();
        rest.into_iter().for_each(|id| self.fail(id, error.clone()));
    }

    /// Whether all that was queued has succeeded, before any of it is kept.
    pub(crate) fn settle(&mut self) -> bool {
        let settled = self.runner.device.flush();
        settled.map_err(|error| self.lose(&[], error)).is_ok()
    }
}
