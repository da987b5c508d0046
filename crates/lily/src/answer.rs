//! One answer on the terminal: events from the engine, through the output parser, to the screen.
//!
//! The answer itself goes to standard output and everything around it (thinking, tool calls, statistics)
//! to standard error, so that `lily run … > file` keeps the answer only.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use lily_engine::{Event, Finish, Generation, Request, Sampling, Usage};
use lily_text::{Answer, OutputEvent, OutputParser};

use crate::session::Session;

/// What to generate from.
pub struct Question {
    pub tokens: Vec<u32>,
    /// Positions worth keeping the state at.
    pub boundaries: Vec<usize>,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    /// Reads the output.
    pub parser: OutputParser,
    pub show_thinking: bool,
}

/// How an answer ended.
pub struct Outcome {
    pub answer: Answer,
    pub ended: Ended,
    pub usage: Usage,
    pub first_token: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// Out of tokens or context.
    Length,
    /// By Ctrl-C.
    Interrupted,
}

/// Generates, printing as it goes, until the end or Ctrl-C.
pub async fn ask(session: &Session, question: Question) -> anyhow::Result<Outcome> {
    let request = Request {
        prompt: question.tokens,
        sampling: question.sampling,
        max_tokens: question.max_tokens,
        stop_tokens: session.text.eos(),
        logprobs: None,
        constraint: None,
        keep_at: question.boundaries,
    };
    let started = Instant::now();
    let generation = session.engine.submit(request)?;
    let mut reader = Reader::new(question.parser, question.show_thinking);
    let (ended, usage) = tokio::select! {
        result = reader.read(generation, started) => result?,
        _ = tokio::signal::ctrl_c() => (Ended::Interrupted, None),
    };
    reader.finish()?;
    let usage = usage.unwrap_or_else(|| reader.counted(started));
    Ok(Outcome { answer: reader.answer, ended, usage, first_token: reader.first_token.unwrap_or_default() })
}

/// Parses tokens and prints what they mean.
struct Reader {
    parser: OutputParser,
    answer: Answer,
    screen: Screen,
    events: Vec<OutputEvent>,
    first_token: Option<Duration>,
    tokens: usize,
}

impl Reader {
    fn new(parser: OutputParser, show_thinking: bool) -> Self {
        Reader { parser, answer: Answer::default(), screen: Screen::new(show_thinking), events: Vec::new(), first_token: None, tokens: 0 }
    }

    /// How it ended, and the engine's own account where it came to one.
    async fn read(&mut self, mut generation: Generation, started: Instant) -> anyhow::Result<(Ended, Option<Usage>)> {
        while let Some(event) = generation.next().await {
            match event {
                Event::Started { .. } => {}
                Event::Prefilled { done, total } => self.screen.prefilled(done, total),
                Event::Token { id, .. } => {
                    self.first_token.get_or_insert_with(|| started.elapsed());
                    self.tokens += 1;
                    self.parser.push(id, &mut self.events);
                    if self.show()? {
                        return Ok((Ended::Complete, None));
                    }
                }
                Event::Finished { reason: Finish::Stop, usage } => return Ok((Ended::Complete, Some(usage))),
                Event::Finished { reason: Finish::Length, usage } => return Ok((Ended::Length, Some(usage))),
                Event::Failed(error) => return Err(anyhow::anyhow!(error).context("the engine failed")),
            }
        }
        Err(anyhow::anyhow!("the engine ended without an answer"))
    }

    /// Prints the pending events; true when a stop text matched.
    fn show(&mut self) -> anyhow::Result<bool> {
        let mut stopped = false;
        for event in self.events.drain(..) {
            stopped |= matches!(event, OutputEvent::StopMatched { .. });
            self.screen.print(&event).context("cannot write the answer")?;
            self.answer.apply(event);
        }
        Ok(stopped)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.parser.finish(&mut self.events);
        self.show()?;
        self.screen.end()?;
        Ok(())
    }

    /// What is known without the engine's own account: after a stop text or Ctrl-C.
    fn counted(&self, started: Instant) -> Usage {
        let prefill = self.first_token.unwrap_or_default();
        Usage { generated_tokens: self.tokens, prefill, decode: started.elapsed().saturating_sub(prefill), ..Usage::default() }
    }
}

/// Text beside the answer: dimmed where a person reads it.
pub fn dimmed(text: &str) -> String {
    if io::stderr().is_terminal() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// The terminal: content on standard output, the rest dimmed on standard error.
struct Screen {
    show_thinking: bool,
    /// What was printed last, so that a change of kind starts a new line.
    last: Kind,
    progress: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Nothing,
    Aside,
    Content,
}

impl Screen {
    fn new(show_thinking: bool) -> Self {
        Screen { show_thinking, last: Kind::Nothing, progress: io::stderr().is_terminal() }
    }

    /// Shows the progress of a long prompt on one line that the answer overwrites.
    fn prefilled(&mut self, done: usize, total: usize) {
        if self.progress && total > 1024 {
            eprint!("\r\x1b[2K\x1b[2mreading the prompt: {done} of {total} tokens\x1b[0m");
            if done == total {
                eprint!("\r\x1b[2K");
            }
        }
    }

    fn print(&mut self, event: &OutputEvent) -> io::Result<()> {
        match event {
            OutputEvent::Reasoning(text) if self.show_thinking => self.aside(text),
            OutputEvent::Reasoning(_) | OutputEvent::StopMatched { .. } => Ok(()),
            OutputEvent::Content(text) => self.content(text),
            OutputEvent::ToolCallStart { name, .. } => self.aside(&format!("\n[calls {name}] ")),
            OutputEvent::ToolCallArguments { json, .. } => self.aside(json),
        }
    }

    fn aside(&mut self, text: &str) -> io::Result<()> {
        self.last = Kind::Aside;
        let mut out = io::stderr().lock();
        out.write_all(dimmed(text).as_bytes())?;
        out.flush()
    }

    fn content(&mut self, text: &str) -> io::Result<()> {
        if self.last == Kind::Aside {
            eprint!("\n\n");
        }
        self.last = Kind::Content;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        match self.last {
            Kind::Content => writeln!(io::stdout()),
            Kind::Aside => writeln!(io::stderr()),
            Kind::Nothing => Ok(()),
        }
    }
}

impl Outcome {
    /// The line of statistics.
    pub fn statistics(&self) -> String {
        let Usage { prompt_tokens, cached_tokens, generated_tokens, prefill, decode, .. } = self.usage;
        let mut line = String::new();
        if prompt_tokens > 0 {
            line += &format!("prompt {prompt_tokens} tokens");
            if cached_tokens > 0 {
                line += &format!(" ({cached_tokens} cached)");
            }
            line += &format!(", {:.0} tok/s; ", rate(prompt_tokens - cached_tokens, prefill));
        }
        line += &format!(
            "answer {generated_tokens} tokens, {:.0} tok/s; first token after {:.2} s",
            rate(generated_tokens.saturating_sub(1), decode),
            self.first_token.as_secs_f64()
        );
        match self.ended {
            Ended::Complete => line,
            Ended::Length => line + "; stopped at the token limit",
            Ended::Interrupted => line + "; interrupted",
        }
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}
