//! Anthropic's shapes of an answer: the events of a stream, and the message that they fold to.

use serde_json::{Value, json};

use super::blocks::{BlockEvent, Blocks, Folded};
use super::error_body;
use crate::error::ApiError;
use crate::generate::{Answers, FinishReason, Piece};
use crate::service::App;
use crate::sse::{Format, Frame};
use crate::usage::Outcome;

/// How an answer ended.
struct Ending {
    stop_reason: &'static str,
    stop_sequence: Option<String>,
    usage: Value,
}

impl Ending {
    fn new(outcome: &Outcome, stop: Option<String>) -> Self {
        let stop_reason = match outcome.reason {
            FinishReason::Length => "max_tokens",
            FinishReason::ToolCalls => "tool_use",
            FinishReason::Stop if stop.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
        };
        // In this API `input_tokens` are those that were not in the cache.
        let usage = json!({
            "input_tokens": outcome.prompt_tokens - outcome.cached_tokens.min(outcome.prompt_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": outcome.cached_tokens,
            "output_tokens": outcome.generated_tokens,
        });
        Ending { stop_reason, stop_sequence: stop, usage }
    }
}

fn message(app: &App, content: Vec<Value>, ending: Option<&Ending>, usage: Value) -> Value {
    json!({
        "id": app.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": app.service.model,
        "content": content,
        "stop_reason": ending.map(|ending| ending.stop_reason),
        "stop_sequence": ending.and_then(|ending| ending.stop_sequence.clone()),
        "usage": usage,
    })
}

/// An answer as a stream of named events.
pub(super) struct MessageStream {
    start: Value,
    blocks: Blocks,
}

impl MessageStream {
    pub fn new(app: &App, prompt_tokens: usize) -> Self {
        let usage =
            json!({"input_tokens": prompt_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0});
        let start = json!({"type": "message_start", "message": message(app, Vec::new(), None, usage)});
        MessageStream { start, blocks: Blocks::default() }
    }
}

fn frame(event: BlockEvent) -> Frame {
    let (name, data) = match event {
        BlockEvent::Start { index, block } => {
            ("content_block_start", json!({"type": "content_block_start", "index": index, "content_block": block}))
        }
        BlockEvent::Delta { index, delta } => {
            ("content_block_delta", json!({"type": "content_block_delta", "index": index, "delta": delta}))
        }
        BlockEvent::Stop { index } => ("content_block_stop", json!({"type": "content_block_stop", "index": index})),
    };
    Frame::named(name, &data)
}

impl Format for MessageStream {
    fn open(&mut self) -> Vec<Frame> {
        vec![Frame::named("message_start", &self.start), self.keep_alive()]
    }

    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Frame> {
        let Piece::Finished { outcome, stop } = piece else {
            return self.blocks.piece(&piece).into_iter().map(frame).collect();
        };
        let ending = Ending::new(&outcome, stop);
        let delta = json!({"stop_reason": ending.stop_reason, "stop_sequence": ending.stop_sequence});
        let last = Frame::named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": ending.usage}));
        self.blocks.end().into_iter().map(frame).chain([last]).collect()
    }

    fn close(&mut self) -> Vec<Frame> {
        vec![Frame::named("message_stop", &json!({"type": "message_stop"}))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::named("error", &error_body(error))]
    }

    fn keep_alive(&mut self) -> Frame {
        Frame::named("ping", &json!({"type": "ping"}))
    }
}

/// The whole answer: the stream's blocks, folded.
pub(super) async fn whole(app: &App, mut answers: Answers) -> Result<Value, ApiError> {
    let (mut blocks, mut folded) = (Blocks::default(), Folded::default());
    let mut ending = None;
    while let Some((_, piece)) = answers.next().await {
        let piece = piece?;
        blocks.piece(&piece).into_iter().for_each(|event| folded.apply(event));
        if let Piece::Finished { outcome, stop } = piece {
            blocks.end().into_iter().for_each(|event| folded.apply(event));
            ending = Some(Ending::new(&outcome, stop));
        }
    }
    let usage = ending.as_ref().map_or(Value::Null, |ending| ending.usage.clone());
    Ok(message(app, folded.content(), ending.as_ref(), usage))
}
