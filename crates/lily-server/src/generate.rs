//! From a prompt to pieces of an answer: the one path that every generating route takes, streaming or not.
//!
//! [`Answers::start`] submits a request's choices to the engine; [`Answers::next`] yields what the output
//! parser makes of the tokens, until each choice has [`Piece::Finished`]. Dropping it cancels the work.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::stream::{SelectAll, Stream, StreamExt, unfold};
use lily_engine::{Constraint, Event, Finish, Generation, Logprobs, Request, Sampling, Usage};
use lily_text::{OutputEvent, OutputOptions, OutputParser};
use tokio::time::Instant;

use crate::access::Record;
use crate::error::ApiError;
use crate::service::App;
use crate::trace::Trace;
use crate::usage::{Clock, Outcome, TokenWait};

/// What a route asks for, its wire format left behind.
pub(crate) struct Job {
    pub prompt: Vec<u32>,
    /// Prefixes of the prompt worth keeping the state at.
    pub keep_at: Vec<usize>,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    /// Alternatives to report beside each token's log-probability.
    pub logprobs: Option<usize>,
    pub reading: Reading,
    /// Independent answers.
    pub choices: usize,
    /// Otherwise the answer ends before its second tool call.
    pub parallel_tool_calls: bool,
    /// What each choice is held to; empty: nothing.
    pub constraints: Vec<Box<dyn Constraint>>,
}

/// How to read what the model says.
#[derive(Clone)]
pub(crate) enum Reading {
    Chat(OutputOptions),
    /// Everything is content.
    Raw {
        stop: Vec<String>,
    },
}

/// A part of one choice's answer, in order.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Reasoning(String),
    Content {
        text: String,
        logprobs: Vec<TokenLogprobs>,
    },
    ToolCallStart {
        index: usize,
        id: String,
        name: String,
    },
    ToolCallArguments {
        index: usize,
        json: String,
    },
    /// The last piece; `stop` is the stop text that matched.
    Finished {
        outcome: Outcome,
        stop: Option<String>,
    },
}

/// A content token with its probabilities.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprobs {
    pub token: u32,
    pub logprobs: Logprobs,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

impl FinishReason {
    /// In OpenAI's words.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

type Pieces = Pin<Box<dyn Stream<Item = (usize, Result<Piece, ApiError>)> + Send>>;

/// All choices of one request.
pub(crate) struct Answers {
    choices: SelectAll<Pieces>,
    deadline: Option<(Instant, Duration)>,
}

impl Answers {
    /// Submits every choice of every job; choices are numbered through. Fails where the engine refuses
    /// one; what was submitted is cancelled then.
    pub fn start(app: &App, record: &Record, jobs: Vec<Job>) -> Result<Self, ApiError> {
        let mut choices = SelectAll::new();
        for mut job in jobs {
            for at in 0..job.choices {
                let answer = Answer::start(app, record, &mut job, at)?;
                let choice = choices.len();
                let pieces = unfold(answer, move |mut answer| async move { Some(((choice, answer.next().await?), answer)) });
                choices.push(Box::pin(pieces) as Pieces);
            }
        }
        let deadline = app.options.request_timeout.map(|timeout| (Instant::now() + timeout, timeout));
        Ok(Answers { choices, deadline })
    }

    /// The next piece and the choice that it belongs to; `None` when every choice has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<(usize, Result<Piece, ApiError>)> {
        let Some((deadline, timeout)) = self.deadline else { return self.choices.next().await };
        match tokio::time::timeout_at(deadline, self.choices.next()).await {
            Ok(next) => next,
            Err(_) => {
                self.choices.clear();
                self.deadline = None;
                let message = format!("the answer took longer than {} s, this server's limit", timeout.as_secs_f32());
                Some((0, Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))))
            }
        }
    }
}

/// One choice.
struct Answer {
    app: App,
    record: Record,
    /// `None` once nothing more is wanted of the engine.
    generation: Option<Generation>,
    parser: OutputParser,
    chat: bool,
    /// Inside a think block, by token id.
    thinking: bool,
    ready: VecDeque<Result<Piece, ApiError>>,
    /// Of content tokens whose text the parser still holds.
    held: Vec<TokenLogprobs>,
    content_begun: bool,
    parallel_tool_calls: bool,
    tool_calls: usize,
    clock: Clock,
    trace: Option<Box<Trace>>,
    /// Prompt and output of a chat, to be remembered when it ends; of the first choice only.
    said: Option<(Vec<u32>, Vec<u32>)>,
}

impl Answer {
    fn start(app: &App, record: &Record, job: &mut Job, at: usize) -> Result<Self, ApiError> {
        let mut sampling = job.sampling.clone();
        // The same seed gives the same answers again, but not n times the same one.
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(at as u64));
        let trace = Trace::start(app, &record.route, job, at, &sampling);
        let generation = app.service.engine.submit(Request {
            prompt: job.prompt.clone(),
            sampling,
            max_tokens: job.max_tokens,
            stop_tokens: app.service.text.eos(),
            logprobs: job.logprobs,
            constraint: job.constraints.pop(),
            keep_at: job.keep_at.clone(),
        })?;
        if at == 0 {
            record.update(|tokens| tokens.prompt += job.prompt.len());
        }
        let (parser, chat, thinking) = match &job.reading {
            Reading::Chat(options) => (app.service.text.output_parser(options.clone()), true, options.in_thinking),
            Reading::Raw { stop } => (app.service.text.completion_parser(stop.clone()), false, false),
        };
        Ok(Answer {
            app: app.clone(),
            record: record.clone(),
            generation: Some(generation),
            parser,
            chat,
            thinking,
            ready: VecDeque::new(),
            held: Vec::new(),
            content_begun: false,
            parallel_tool_calls: job.parallel_tool_calls,
            tool_calls: 0,
            clock: Clock::start(job.prompt.len()),
            trace,
            said: (chat && at == 0).then(|| (job.prompt.clone(), Vec::new())),
        })
    }

    /// Cancel-safe: all state is in `self`, and the only wait is for the engine's next event.
    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            let event = self.generation.as_mut()?.next().await?;
            self.hear(event);
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Started { cached_tokens, lookup } => {
                self.clock.started(cached_tokens);
                self.trace.iter_mut().for_each(|trace| trace.started(cached_tokens, lookup));
                self.record.update(|tokens| tokens.cached += cached_tokens);
            }
            Event::Prefilled { done, .. } => self.trace.iter_mut().for_each(|trace| trace.prefilled(done)),
            Event::Token { id, logprobs } => self.token(id, logprobs),
            Event::Finished { reason, usage } => {
                let mut rest = Vec::new();
                self.parser.finish(&mut rest);
                self.parsed(rest);
                let reason = match reason {
                    Finish::Length => FinishReason::Length,
                    Finish::Stop => FinishReason::Stop,
                };
                self.end(reason, Some(usage), None);
            }
            Event::Failed(error) => {
                self.generation = None;
                self.record.update(|tokens| tokens.finish = Some("error"));
                self.trace.iter_mut().for_each(|trace| trace.finished("error"));
                tracing::error!(%error, "an answer failed");
                self.ready.push_back(Err(ApiError::from(&*error)));
            }
        }
    }

    fn token(&mut self, token: u32, logprobs: Option<Logprobs>) {
        let special = self.app.service.text.special();
        let markup = [special.think, special.think_end, special.tool_call, special.tool_call_end].contains(&Some(token));
        let ends = self.app.service.text.eos().contains(&token);
        let wait = self.clock.token(self.thinking);
        self.trace.iter_mut().for_each(|trace| trace.token(token));
        self.said.iter_mut().for_each(|(_, output)| output.push(token));
        self.app.metrics.token_wait(wait);
        self.record.update(|tokens| {
            tokens.generated += 1;
            if let TokenWait::First(wait) = wait {
                tokens.first_token.get_or_insert(wait);
            }
        });
        if let Some(logprobs) = logprobs.filter(|_| !self.thinking && !markup && !ends) {
            self.held.push(TokenLogprobs { token, logprobs });
        }
        match Some(token) {
            tag if tag == special.think_end => self.thinking = false,
            tag if tag == special.think && !self.content_begun => self.thinking = self.chat,
            _ => {}
        }
        if ends {
            return; // not part of the text; the engine's last event follows
        }
        let mut events = Vec::new();
        self.parser.push(token, &mut events);
        self.parsed(events);
    }

    fn parsed(&mut self, events: Vec<OutputEvent>) {
        for event in events {
            if self.generation.is_none() {
                return; // ended by a stop text or by a second tool call: nothing may follow
            }
            let piece = match event {
                OutputEvent::Reasoning(text) => Piece::Reasoning(text),
                OutputEvent::Content(text) => Piece::Content { logprobs: self.logprobs_of(&text), text },
                OutputEvent::ToolCallStart { index, .. } if index > 0 && !self.parallel_tool_calls => {
                    return self.end(FinishReason::Stop, None, None);
                }
                OutputEvent::ToolCallStart { index, id, name } => {
                    self.held.clear();
                    self.tool_calls += 1;
                    Piece::ToolCallStart { index, id, name }
                }
                OutputEvent::ToolCallArguments { index, json } => {
                    self.held.clear();
                    Piece::ToolCallArguments { index, json }
                }
                OutputEvent::StopMatched { stop } => return self.end(FinishReason::Stop, None, Some(stop)),
            };
            self.ready.push_back(Ok(piece));
        }
    }

    /// The held probabilities, for the content that comes out now. White space that the parser dropped
    /// between the thinking and the answer is not part of it.
    fn logprobs_of(&mut self, text: &str) -> Vec<TokenLogprobs> {
        let bytes = |held: &[TokenLogprobs]| -> Vec<u8> {
            held.iter().flat_map(|held| self.app.service.text.token_bytes(held.token).unwrap_or_default()).copied().collect()
        };
        let mut first = 0;
        if !self.content_begun {
            while first < self.held.len() && !bytes(&self.held[first..]).starts_with(text.as_bytes()) {
                first += 1;
            }
        }
        self.content_begun = true;
        self.held.drain(..first);
        std::mem::take(&mut self.held)
    }

    /// Ends the answer; what the engine still does for it is cancelled.
    fn end(&mut self, reason: FinishReason, usage: Option<Usage>, stop: Option<String>) {
        if self.generation.take().is_none() {
            return;
        }
        let reason = if reason == FinishReason::Stop && self.tool_calls > 0 { FinishReason::ToolCalls } else { reason };
        let outcome = self.clock.outcome(reason, usage);
        self.record.update(|tokens| tokens.finish = Some(reason.as_str()));
        if let Some(mut trace) = self.trace.take() {
            trace.finished(reason.as_str());
        }
        self.app.metrics.answer(&outcome);
        if let Some((prompt, output)) = self.said.take() {
            self.app.service.text.answered(&prompt, &output);
        }
        self.ready.push_back(Ok(Piece::Finished { outcome, stop }));
    }
}
