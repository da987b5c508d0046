//! `lily parse`: a model's raw output, read as the server reads it. For bug reports about thinking and tool
//! calls, and for trying the parser on a text of one's own.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use lily_model::ModelConfig;
use lily_text::{Answer, AnswerCall, OutputEvent, OutputOptions, OutputParser, Text, Tool};
use serde_json::{Map, Value, json};

use crate::cli::ParseArgs;
use crate::{session, source};

pub fn parse(args: ParseArgs) -> anyhow::Result<()> {
    let checkpoint = source::open(args.model.as_deref())?.checkpoint;
    let text = session::text(&checkpoint, &ModelConfig::from_checkpoint(&checkpoint)?)?;
    let output = output(&args, &text)?;

    let (events, answer) = read(&text, &output, &output.tokens);
    let (events, answer) = match args.chunk {
        None => (events, answer),
        Some(bytes) => {
            let cut = read(&text, &output, &text.cut(&output.tokens, bytes.into()));
            if without_ids(&cut.1) != without_ids(&answer) {
                bail!("the answer depends on how the output is cut: {} as it came, {} in pieces", message(&answer), message(&cut.1));
            }
            cut
        }
    };
    let mut out = io::stdout().lock();
    if args.stream {
        events.iter().try_for_each(|event| writeln!(out, "{}", delta(event)))?;
    } else {
        writeln!(out, "{:#}", message(&answer))?;
    }
    Ok(())
}

/// What is to be read, and how.
struct Output {
    tokens: Vec<u32>,
    options: OutputOptions,
    /// No chat format: everything is content.
    raw: bool,
}

fn output(args: &ParseArgs, text: &Text) -> anyhow::Result<Output> {
    let given = input(args.file.as_deref())?;
    if args.trace {
        return trace(&given, args.stop.clone());
    }
    let tokens = if args.ids { token_ids(&given)? } else { text.encode(&given)? };
    if let Some(unknown) = tokens.iter().find(|&&token| token as usize >= text.vocab()) {
        bail!("token {unknown} does not exist: the vocabulary ends at {}", text.vocab());
    }
    let tools = args.tools.as_deref().map(tools_file).transpose()?.unwrap_or_default();
    let options = OutputOptions { in_thinking: !args.no_think, tools, stop: args.stop.clone() };
    Ok(Output { tokens, options, raw: args.raw })
}

/// The text of a file; `-` or nothing is standard input.
pub fn input(file: Option<&Path>) -> anyhow::Result<String> {
    match file.filter(|file| *file != Path::new("-")) {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display())),
        None => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Ok(text)
        }
    }
}

/// Numbers, whatever stands between them: a JSON array, a line of a log.
pub fn token_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let words = text.split(|letter: char| letter.is_whitespace() || "[],;".contains(letter)).filter(|word| !word.is_empty());
    words.map(|word| word.parse().with_context(|| format!("expected a token id, found {word:?}"))).collect()
}

fn tools_file(file: &Path) -> anyhow::Result<Vec<Tool>> {
    let place = || format!("--tools {}", file.display());
    let text = std::fs::read_to_string(file).with_context(place)?;
    tools(serde_json::from_str(&text).with_context(place)?).with_context(place)
}

fn tools(value: Value) -> anyhow::Result<Vec<Tool>> {
    let body = match value {
        Value::Object(body) => body,
        tools => Map::from_iter([("tools".to_owned(), tools)]),
    };
    lily_server::read_tools(&body).map_err(anyhow::Error::msg)
}

/// A file that `lily serve --trace` wrote. Tokens that were redacted are left out.
fn trace(text: &str, stop: Vec<String>) -> anyhow::Result<Output> {
    let mut trace: Value = serde_json::from_str(text).context("the trace is not valid JSON")?;
    let Some(ids) = trace["output_tokens"].as_array() else { bail!("the trace has no output_tokens") };
    let tokens = ids.iter().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    let tools = tools(trace["tools"].take())?;
    let in_thinking = trace["in_thinking"].as_bool().unwrap_or(false);
    let traced = trace["stop"].as_array().into_iter().flatten().filter_map(|stop| stop.as_str().map(str::to_owned));
    let options = OutputOptions { in_thinking, tools, stop: traced.chain(stop).collect() };
    Ok(Output { tokens, options, raw: trace["raw"].as_bool().unwrap_or(false) })
}

/// The stream's events and what they fold to.
fn read(text: &Text, output: &Output, tokens: &[u32]) -> (Vec<OutputEvent>, Answer) {
    let mut parser: OutputParser = match output.raw {
        true => text.completion_parser(output.options.stop.clone()),
        false => text.output_parser(output.options.clone()),
    };
    let mut events = Vec::new();
    tokens.iter().for_each(|&token| parser.push(token, &mut events));
    parser.finish(&mut events);
    let answer = events.iter().cloned().collect();
    (events, answer)
}

/// Ids of calls are new each time.
fn without_ids(answer: &Answer) -> Answer {
    let mut answer = answer.clone();
    answer.tool_calls.iter_mut().for_each(|call| call.id.clear());
    answer
}

/// An event as the stream of chat completions has it.
fn delta(event: &OutputEvent) -> Value {
    match event {
        OutputEvent::Reasoning(text) => json!({"reasoning_content": text}),
        OutputEvent::Content(text) => json!({"content": text}),
        OutputEvent::ToolCallStart { index, id, name } => {
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]})
        }
        OutputEvent::ToolCallArguments { index, json } => json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]}),
        OutputEvent::StopMatched { stop } => json!({"stop": stop}),
    }
}

/// The whole answer as chat completions have it, and the stop text that ended it.
fn message(answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.content});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = json!(answer.reasoning);
    }
    if !answer.tool_calls.is_empty() {
        let call =
            |call: &AnswerCall| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
        message["tool_calls"] = answer.tool_calls.iter().map(call).collect();
    }
    if let Some(stop) = &answer.stop {
        message["stop"] = json!(stop);
    }
    message
}
