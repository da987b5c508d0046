//! OpenAI's shapes of a text completion.

use serde_json::{Map, Value, json};

use crate::chat::reply::Heading;
use crate::error::ApiError;
use crate::generate::{Answers, Piece, TokenLogprobs};
use crate::service::App;
use crate::sse::{Format, Frame};
use crate::usage::Total;

const OBJECT: &str = "text_completion";

/// What the stream and the whole answer both need to know.
pub(crate) struct Shape {
    pub app: App,
    pub heading: Heading,
    /// Choices of each prompt.
    pub per_prompt: usize,
    /// Prompts to put before the answers; empty texts where none is asked for.
    pub echoes: Vec<String>,
    pub with_logprobs: bool,
}

impl Shape {
    fn choice(&self, index: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
        json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish})
    }

    fn choices(&self) -> usize {
        self.echoes.len() * self.per_prompt
    }

    fn echo(&self, choice: usize) -> &str {
        &self.echoes[choice / self.per_prompt]
    }

    fn shares_prompt(&self, choice: usize) -> bool {
        !choice.is_multiple_of(self.per_prompt)
    }

    /// `offset`: characters of the choice's text before these tokens.
    fn logprobs(&self, tokens: &[TokenLogprobs], mut offset: usize) -> Value {
        if !self.with_logprobs {
            return Value::Null;
        }
        let name = |token: u32| String::from_utf8_lossy(self.app.service.text.token_bytes(token).unwrap_or_default()).into_owned();
        let mut offsets = Vec::with_capacity(tokens.len());
        for of in tokens {
            offsets.push(offset);
            offset += name(of.token).chars().count();
        }
        let tops =
            |of: &TokenLogprobs| -> Map<String, Value> { of.logprobs.top.iter().map(|&(token, p)| (name(token), json!(p))).collect() };
        json!({
            "tokens": tokens.iter().map(|of| name(of.token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|of| of.logprobs.chosen).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(tops).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

/// A completion as a stream of `text_completion` chunks.
pub(crate) struct CompletionStream {
    pub include_usage: bool,
    total: Total,
    /// Characters sent, by choice.
    sent: Vec<usize>,
    shape: Shape,
}

impl CompletionStream {
    pub fn new(shape: Shape, include_usage: bool) -> Self {
        CompletionStream { include_usage, total: Total::default(), sent: vec![0; shape.choices()], shape }
    }

    fn chunk(&self, choice: Value) -> Map<String, Value> {
        let mut chunk = self.shape.heading.object(OBJECT, vec![choice]);
        if self.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }

    fn text(&mut self, choice: usize, text: &str, logprobs: &[TokenLogprobs]) -> Frame {
        let logprobs = self.shape.logprobs(logprobs, self.sent[choice]);
        self.sent[choice] += text.chars().count();
        Frame::data(&Value::Object(self.chunk(self.shape.choice(choice, text, logprobs, None))))
    }
}

impl Format for CompletionStream {
    fn open(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for choice in 0..self.shape.choices() {
            let echo = self.shape.echo(choice).to_owned();
            if !echo.is_empty() {
                frames.push(self.text(choice, &echo, &[]));
            }
        }
        frames
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Frame> {
        match piece {
            Piece::Content { text, logprobs } => vec![self.text(choice, &text, &logprobs)],
            Piece::Finished { outcome, .. } => {
                self.total.add(&outcome, self.shape.shares_prompt(choice));
                let mut own = Total::default();
                own.add(&outcome, false);
                let mut chunk = self.chunk(self.shape.choice(choice, "", Value::Null, Some(outcome.reason.as_str())));
                chunk.insert("timings".to_owned(), own.timings());
                vec![Frame::data(&Value::Object(chunk))]
            }
            // A raw reading has none of these.
            Piece::Reasoning(_) | Piece::ToolCallStart { .. } | Piece::ToolCallArguments { .. } => Vec::new(),
        }
    }

    fn close(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.shape.heading.object(OBJECT, Vec::new());
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
        Frame::data(&Value::Object(self.chunk(self.shape.choice(0, "", Value::Null, None))))
    }
}

/// The whole answer: the stream's pieces, folded.
pub(crate) async fn whole(shape: &Shape, mut answers: Answers) -> Result<Value, ApiError> {
    struct Folded {
        text: String,
        logprobs: Vec<TokenLogprobs>,
        finish: Option<&'static str>,
    }
    let begin = |choice| Folded { text: shape.echo(choice).to_owned(), logprobs: Vec::new(), finish: None };
    let mut folded: Vec<Folded> = (0..shape.choices()).map(begin).collect();
    let mut total = Total::default();
    while let Some((choice, piece)) = answers.next().await {
        match piece? {
            Piece::Content { text, logprobs } => {
                folded[choice].text.push_str(&text);
                folded[choice].logprobs.extend(logprobs);
            }
            Piece::Finished { outcome, .. } => {
                total.add(&outcome, shape.shares_prompt(choice));
                folded[choice].finish = Some(outcome.reason.as_str());
            }
            Piece::Reasoning(_) | Piece::ToolCallStart { .. } | Piece::ToolCallArguments { .. } => {}
        }
    }
    let choice = |(index, of): (usize, &Folded)| shape.choice(index, &of.text, shape.logprobs(&of.logprobs, 0), of.finish);
    let mut answer = shape.heading.object(OBJECT, folded.iter().enumerate().map(choice).collect());
    answer.insert("usage".to_owned(), total.usage());
    answer.insert("timings".to_owned(), total.timings());
    Ok(Value::Object(answer))
}
