//! OpenAI's shapes of a chat answer: the chunks of a stream, and the object that they fold to.

use lily_text::{Answer, AnswerCall, OutputEvent};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::generate::{Answers, Piece, TokenLogprobs};
use crate::service::{App, unix_seconds};
use crate::sse::{Format, Frame};
use crate::usage::{Outcome, Total};

/// What every chunk, and the whole answer, says about itself.
pub(crate) struct Heading {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Heading {
    pub fn new(app: &App, prefix: &str) -> Self {
        Heading { id: app.new_id(prefix), created: unix_seconds(), model: app.service.model.clone() }
    }

    pub fn object(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(self.id));
        map.insert("object".to_owned(), json!(object));
        map.insert("created".to_owned(), json!(self.created));
        map.insert("model".to_owned(), json!(self.model));
        map.insert("system_fingerprint".to_owned(), json!(concat!("lily-", env!("CARGO_PKG_VERSION"))));
        map.insert("choices".to_owned(), Value::Array(choices));
        map
    }
}

/// A chat answer as a stream of `chat.completion.chunk`.
pub(crate) struct ChatStream {
    pub app: App,
    pub heading: Heading,
    pub choices: usize,
    pub include_usage: bool,
    pub with_logprobs: bool,
    pub total: Total,
}

impl ChatStream {
    fn chunk(&self, choice: usize, delta: Value, logprobs: Value, finish: Value) -> Map<String, Value> {
        let choice = json!({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        let mut chunk = self.heading.object("chat.completion.chunk", vec![choice]);
        if self.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }

    fn delta(&self, choice: usize, delta: Value) -> Frame {
        Frame::data(&Value::Object(self.chunk(choice, delta, Value::Null, Value::Null)))
    }

    fn finish(&mut self, choice: usize, outcome: &Outcome) -> Frame {
        self.total.add(outcome, choice > 0);
        let mut chunk = self.chunk(choice, json!({}), Value::Null, json!(outcome.reason.as_str()));
        let mut own = Total::default();
        own.add(outcome, false);
        chunk.insert("timings".to_owned(), own.timings());
        Frame::data(&Value::Object(chunk))
    }
}

impl Format for ChatStream {
    fn open(&mut self) -> Vec<Frame> {
        (0..self.choices).map(|choice| self.delta(choice, json!({"role": "assistant", "content": ""}))).collect()
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Frame> {
        let frame = match piece {
            Piece::Reasoning(text) => self.delta(choice, json!({"reasoning_content": text})),
            Piece::Content { text, logprobs } => {
                let logprobs = if self.with_logprobs { content_logprobs(&self.app, &logprobs) } else { Value::Null };
                Frame::data(&Value::Object(self.chunk(choice, json!({"content": text}), logprobs, Value::Null)))
            }
            Piece::ToolCallStart { index, id, name } => {
                let call = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                self.delta(choice, json!({"tool_calls": [call]}))
            }
            Piece::ToolCallArguments { index, json } => {
                self.delta(choice, json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]}))
            }
            Piece::Finished { outcome, .. } => self.finish(choice, &outcome),
        };
        vec![frame]
    }

    fn close(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.heading.object("chat.completion.chunk", Vec::new());
            chunk.insert("usage".to_owned(), self.total.usage());
            frames.push(Frame::data(&Value::Object(chunk)));
        }
        frames.push(Frame::done());
        frames
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::data(&error.to_json()), Frame::done()]
    }

    fn keep_alive(&mut self) -> Frame {
        self.delta(0, json!({}))
    }
}

/// One choice, folded from its pieces.
#[derive(Default)]
pub(crate) struct Choice {
    pub answer: Answer,
    pub logprobs: Vec<TokenLogprobs>,
    pub outcome: Option<Outcome>,
}

impl Choice {
    pub fn fold(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => self.answer.apply(OutputEvent::Reasoning(text)),
            Piece::Content { text, logprobs } => {
                self.answer.apply(OutputEvent::Content(text));
                self.logprobs.extend(logprobs);
            }
            Piece::ToolCallStart { index, id, name } => self.answer.apply(OutputEvent::ToolCallStart { index, id, name }),
            Piece::ToolCallArguments { index, json } => self.answer.apply(OutputEvent::ToolCallArguments { index, json }),
            Piece::Finished { outcome, .. } => self.outcome = Some(outcome),
        }
    }

    fn json(&self, app: &App, index: usize, with_logprobs: bool) -> Value {
        let Answer { reasoning, content, tool_calls, .. } = &self.answer;
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        // A call without words has no content, as OpenAI has it.
        let wordless = content.is_empty() && !tool_calls.is_empty();
        message.insert("content".to_owned(), if wordless { Value::Null } else { json!(content) });
        message.insert("refusal".to_owned(), Value::Null);
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !tool_calls.is_empty() {
            let call = |call: &AnswerCall| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}});
            message.insert("tool_calls".to_owned(), tool_calls.iter().map(call).collect());
        }
        let finish = self.outcome.map(|outcome| outcome.reason.as_str());
        let logprobs = if with_logprobs { content_logprobs(app, &self.logprobs) } else { Value::Null };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
    }
}

/// The whole answer: the stream's pieces, folded.
pub(crate) async fn whole(app: &App, mut answers: Answers, choices: usize, with_logprobs: bool) -> Result<Value, ApiError> {
    let heading = Heading::new(app, "chatcmpl-");
    let mut folded: Vec<Choice> = (0..choices).map(|_| Choice::default()).collect();
    let mut total = Total::default();
    while let Some((at, piece)) = answers.next().await {
        let piece = piece?;
        if let Piece::Finished { outcome, .. } = &piece {
            total.add(outcome, at > 0);
        }
        folded[at].fold(piece);
    }
    let choices = folded.iter().enumerate().map(|(index, choice)| choice.json(app, index, with_logprobs)).collect();
    let mut answer = heading.object("chat.completion", choices);
    answer.insert("usage".to_owned(), total.usage());
    answer.insert("timings".to_owned(), total.timings());
    Ok(Value::Object(answer))
}

/// OpenAI's `logprobs` object.
fn content_logprobs(app: &App, tokens: &[TokenLogprobs]) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = app.service.text.token_bytes(token).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let content = tokens.iter().map(|of| {
        let mut one = entry(of.token, of.logprobs.chosen);
        one["top_logprobs"] = of.logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
        one
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}
