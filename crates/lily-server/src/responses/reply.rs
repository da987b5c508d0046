//! The shapes of a response: the events of a stream, and the object that they fold to.

use serde_json::{Map, Value, json};

use super::items::{ItemEvent, Items};
use crate::error::ApiError;
use crate::generate::{Answers, FinishReason, Piece};
use crate::service::App;
use crate::sse::{Format, Frame};
use crate::usage::Outcome;

/// Writes into the frame how the answer ended.
fn conclude(frame: &mut Map<String, Value>, outcome: &Outcome, output: Vec<Value>) {
    let cut_off = outcome.reason == FinishReason::Length;
    frame.insert("status".to_owned(), json!(if cut_off { "incomplete" } else { "completed" }));
    if cut_off {
        frame.insert("incomplete_details".to_owned(), json!({"reason": "max_output_tokens"}));
    }
    frame.insert("output".to_owned(), Value::Array(output));
    let usage = json!({
        "input_tokens": outcome.prompt_tokens,
        "input_tokens_details": {"cached_tokens": outcome.cached_tokens},
        "output_tokens": outcome.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
        "total_tokens": outcome.prompt_tokens + outcome.generated_tokens,
    });
    frame.insert("usage".to_owned(), usage);
}

/// A response as a stream of numbered, named events.
pub(super) struct ResponseStream {
    frame: Map<String, Value>,
    items: Items,
    sequence: u64,
}

impl ResponseStream {
    pub fn new(app: &App, frame: Map<String, Value>) -> Self {
        ResponseStream { frame, items: Items::new(app), sequence: 0 }
    }

    fn event(&mut self, (name, mut fields): ItemEvent) -> Frame {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Frame::named(name, &fields)
    }

    fn events(&mut self, events: Vec<ItemEvent>) -> Vec<Frame> {
        events.into_iter().map(|event| self.event(event)).collect()
    }

    /// An event that carries the whole response as it stands.
    fn state(&mut self, name: &'static str) -> Frame {
        let response = Value::Object(self.frame.clone());
        self.event((name, json!({"response": response})))
    }
}

impl Format for ResponseStream {
    fn open(&mut self) -> Vec<Frame> {
        vec![self.state("response.created"), self.state("response.in_progress")]
    }

    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Frame> {
        let Piece::Finished { outcome, .. } = piece else {
            let events = self.items.piece(&piece);
            return self.events(events);
        };
        let cut_off = outcome.reason == FinishReason::Length;
        let last = self.items.end(!cut_off);
        let mut frames = self.events(last);
        conclude(&mut self.frame, &outcome, self.items.done.clone());
        frames.push(self.state(if cut_off { "response.incomplete" } else { "response.completed" }));
        frames
    }

    fn close(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        self.frame.insert("status".to_owned(), json!("failed"));
        self.frame.insert("error".to_owned(), json!({"code": error.code, "message": error.message}));
        vec![self.state("response.failed")]
    }

    /// The state again: clients replace what they have by the same.
    fn keep_alive(&mut self) -> Frame {
        self.state("response.in_progress")
    }
}

/// The whole response: the stream's items.
pub(super) async fn whole(app: &App, mut frame: Map<String, Value>, mut answers: Answers) -> Result<Value, ApiError> {
    let mut items = Items::new(app);
    while let Some((_, piece)) = answers.next().await {
        let piece = piece?;
        items.piece(&piece);
        if let Piece::Finished { outcome, .. } = piece {
            items.end(outcome.reason != FinishReason::Length);
            conclude(&mut frame, &outcome, std::mem::take(&mut items.done));
        }
    }
    Ok(Value::Object(frame))
}
