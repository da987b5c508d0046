//! `lily run`: one prompt, one answer.

use std::io::{self, IsTerminal, Read};

use anyhow::{Context, bail};
use lily_text::{ChatOptions, Message, OutputOptions};

use crate::answer::{self, Question};
use crate::cli::RunArgs;
use crate::session::{self, Limits};

pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let prompt = prompt(&args.prompt)?;
    let session = session::start(&args.model, &Limits::ONE)?;
    let _closing = session.close_at_end();
    let stop = args.sampling.stop.clone();
    let (tokens, parser) = if args.raw {
        (session.text.encode(&prompt)?, session.text.completion_parser(stop))
    } else {
        let mut messages: Vec<Message> = args.thinking.system.iter().map(|text| Message::system(text.as_str())).collect();
        messages.push(Message::user(prompt));
        let options = ChatOptions { thinking: !args.thinking.no_think, ..ChatOptions::default() };
        let rendered = session.text.prompt(&messages, &[], &options)?;
        let output = OutputOptions { in_thinking: rendered.in_thinking, stop, ..OutputOptions::default() };
        (rendered.tokens, session.text.output_parser(output))
    };
    let question = Question {
        tokens,
        boundaries: Vec::new(),
        sampling: session.sampling(&args.sampling)?,
        max_tokens: args.sampling.max_tokens,
        parser,
        show_thinking: !args.hide_thinking,
    };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(answer::ask(&session, question))?;
    if !args.quiet {
        eprintln!("{}", outcome.statistics());
    }
    Ok(())
}

/// The prompt of the command line, then standard input where something is piped in.
fn prompt(words: &[String]) -> anyhow::Result<String> {
    let mut parts = Vec::new();
    if !words.is_empty() {
        parts.push(words.join(" "));
    }
    if !io::stdin().is_terminal() {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        let text = String::from_utf8(bytes).map_err(|error| {
            anyhow::anyhow!("standard input: expected UTF-8 text, found another byte at offset {}", error.utf8_error().valid_up_to())
        })?;
        if !text.trim().is_empty() {
            parts.push(text.trim_end_matches('\n').to_string());
        }
    }
    if parts.is_empty() {
        bail!("no prompt: give one as in  lily run \"What is the capital of France?\"  or pipe text in");
    }
    Ok(parts.join("\n\n"))
}
