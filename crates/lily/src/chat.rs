//! `lily chat`: a conversation on the terminal.

use std::io::{self, IsTerminal};

use anyhow::Context;
use lily_text::{ChatOptions, Message, OutputOptions, Role};
use reedline::{DefaultPrompt, DefaultPromptSegment, FileBackedHistory, Reedline, Signal};

use crate::answer::{self, Ended, Outcome, Question};
use crate::cli::ChatArgs;
use crate::session::{self, Limits, Session};

const HELP: &str = "\
/think [on|off]   whether the model thinks before it answers
/reset            forget the conversation
/system TEXT      new instructions, and forget the conversation
/retry            answer the last message again
/help             this list
/quit             leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next.";

pub fn chat(args: ChatArgs) -> anyhow::Result<()> {
    let session = session::start(&args.model, &Limits::ONE)?;
    let _closing = session.close_at_end();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    eprintln!("{} on {}; /help lists the commands", session.name, session.engine.device_name());

    let mut talk = Talk::new(&session, &args)?;
    let mut lines = Lines::new()?;
    let mut pending = String::new();
    while let Some(line) = lines.next()? {
        if let Some(begun) = line.strip_suffix('\\') {
            pending += begun;
            pending.push('\n');
            continue;
        }
        let line = std::mem::take(&mut pending) + &line;
        match talk.take(line.trim()) {
            Next::Answer => runtime.block_on(talk.answer())?,
            Next::Read => {}
            Next::Quit => break,
        }
    }
    Ok(())
}

/// Where the user's lines come from.
enum Lines {
    /// A terminal: editing and history.
    Editor(Box<Reedline>, DefaultPrompt),
    /// A pipe: line by line.
    Pipe(io::Lines<io::StdinLock<'static>>),
}

impl Lines {
    fn new() -> anyhow::Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Lines::Pipe(io::stdin().lines()));
        }
        let editor = Reedline::create().with_history(Box::new(FileBackedHistory::new(1000)?));
        let prompt = DefaultPrompt::new(DefaultPromptSegment::Basic("you".into()), DefaultPromptSegment::Empty);
        Ok(Lines::Editor(Box::new(editor), prompt))
    }

    /// The next line; `None` at the end. Ctrl-C while editing clears the line.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Lines::Pipe(lines) => lines.next().transpose().context("cannot read standard input"),
            Lines::Editor(editor, prompt) => loop {
                match editor.read_line(prompt).context("cannot read from the terminal")? {
                    Signal::Success(line) => return Ok(Some(line)),
                    Signal::CtrlD => return Ok(None),
                    _ => {}
                }
            },
        }
    }
}

/// What a line asks for.
enum Next {
    Answer,
    Read,
    Quit,
}

/// The conversation so far.
struct Talk<'a> {
    session: &'a Session,
    args: &'a ChatArgs,
    sampling: lily_engine::Sampling,
    thinking: bool,
    messages: Vec<Message>,
}

impl<'a> Talk<'a> {
    fn new(session: &'a Session, args: &'a ChatArgs) -> anyhow::Result<Self> {
        let mut talk =
            Talk { session, args, sampling: session.sampling(&args.sampling)?, thinking: !args.thinking.no_think, messages: Vec::new() };
        talk.reset(args.thinking.system.as_deref());
        Ok(talk)
    }

    fn reset(&mut self, system: Option<&str>) {
        self.messages = system.map(Message::system).into_iter().collect();
    }

    fn take(&mut self, line: &str) -> Next {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => return Next::Read,
            "/think" => self.switch_thinking(rest.trim()),
            "/reset" => {
                let system = self.messages.first().filter(|message| message.role == Role::System).map(|message| message.content.clone());
                self.reset(system.as_deref());
                eprintln!("The conversation is forgotten.");
            }
            "/system" => {
                self.reset(Some(rest.trim()).filter(|text| !text.is_empty()));
                eprintln!("New instructions; the conversation is forgotten.");
            }
            "/retry" => {
                while self.messages.last().is_some_and(|message| message.role == Role::Assistant) {
                    self.messages.pop();
                }
                let open = self.messages.last().is_some_and(|message| message.role == Role::User);
                return if open { Next::Answer } else { Next::Read };
            }
            "/quit" | "/exit" => return Next::Quit,
            "/help" => eprintln!("{HELP}"),
            command if command.starts_with('/') && !rest.contains('/') && command[1..].chars().all(char::is_alphabetic) => {
                eprintln!("{command}: no such command\n{HELP}");
            }
            _ => {
                self.messages.push(Message::user(line));
                return Next::Answer;
            }
        }
        Next::Read
    }

    fn switch_thinking(&mut self, wish: &str) {
        self.thinking = match wish {
            "on" => true,
            "off" => false,
            _ => !self.thinking,
        };
        eprintln!("Thinking is {}.", if self.thinking { "on" } else { "off" });
    }

    async fn answer(&mut self) -> anyhow::Result<()> {
        let options = ChatOptions { thinking: self.thinking, ..ChatOptions::default() };
        let prompt = match self.session.text.prompt(&self.messages, &[], &options) {
            Ok(prompt) => prompt,
            Err(error) => return self.give_up(error.into()),
        };
        let output = OutputOptions { in_thinking: prompt.in_thinking, stop: self.args.sampling.stop.clone(), ..OutputOptions::default() };
        let question = Question {
            tokens: prompt.tokens,
            boundaries: prompt.boundaries,
            sampling: self.sampling.clone(),
            max_tokens: self.args.sampling.max_tokens,
            parser: self.session.text.output_parser(output),
            show_thinking: true,
        };
        match answer::ask(self.session, question).await {
            Ok(outcome) => self.keep(outcome),
            Err(error) => return self.give_up(error),
        }
        Ok(())
    }

    fn keep(&mut self, outcome: Outcome) {
        eprintln!("{}", answer::dimmed(&outcome.statistics()));
        if outcome.ended == Ended::Interrupted && outcome.answer.content.is_empty() {
            self.messages.pop();
            return;
        }
        let reasoning = Some(outcome.answer.reasoning).filter(|text| !text.is_empty());
        self.messages.push(Message { reasoning, ..Message::assistant(outcome.answer.content) });
    }

    /// A question that cannot be answered is taken back; the conversation goes on.
    fn give_up(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        eprintln!("lily: {error:#}");
        self.messages.pop();
        Ok(())
    }
}
