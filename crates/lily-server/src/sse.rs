//! Server-sent events: how every streaming route turns pieces of an answer into bytes.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use crate::error::ApiError;
use crate::generate::{Answers, Piece};

/// A route's wire format of a stream. Each method returns the events to send, as frames.
pub(crate) trait Format: Send + 'static {
    /// Before anything is known of the answer.
    fn open(&mut self) -> Vec<Frame>;
    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Frame>;
    /// After every choice has finished.
    fn close(&mut self) -> Vec<Frame>;
    /// Something went wrong after the headers were sent; nothing follows.
    fn fail(&mut self, error: &ApiError) -> Vec<Frame>;
    /// Sent when nothing else was for a while: an event that clients count as life and read as nothing.
    fn keep_alive(&mut self) -> Frame;
}

/// One event, ready to send.
pub(crate) struct Frame(Bytes);

impl Frame {
    /// An event without a name.
    pub fn data(data: &Value) -> Self {
        Frame(format!("data: {data}\n\n").into())
    }

    /// An event with a name, which is its `type` too.
    pub fn named(name: &str, data: &Value) -> Self {
        Frame(format!("event: {name}\ndata: {data}\n\n").into())
    }

    /// The end of OpenAI's streams.
    pub fn done() -> Self {
        Frame(Bytes::from_static(b"data: [DONE]\n\n"))
    }
}

struct Stream<F> {
    answers: Option<Answers>,
    format: F,
    ready: VecDeque<Frame>,
    keep_alive: Duration,
}

impl<F: Format> Stream<F> {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let answers = self.answers.as_mut()?;
            match tokio::time::timeout(self.keep_alive, answers.next()).await {
                Err(_) => return Some(self.format.keep_alive()),
                Ok(Some((choice, Ok(piece)))) => self.ready.extend(self.format.piece(choice, piece)),
                Ok(Some((_, Err(error)))) => {
                    self.answers = None;
                    self.ready.extend(self.format.fail(&error));
                }
                Ok(None) => {
                    self.answers = None;
                    self.ready.extend(self.format.close());
                }
            }
        }
    }
}

/// The response: its headers leave at once, before the prompt is processed. When the client goes away the
/// body is dropped, and the answers with it.
pub(crate) fn respond<F: Format>(answers: Answers, mut format: F, keep_alive: Duration) -> Response {
    let ready = format.open().into();
    let stream = Stream { answers: Some(answers), format, ready, keep_alive };
    let body = Body::from_stream(unfold(stream, |mut stream| async move {
        let Frame(bytes) = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), stream))
    }));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would otherwise collect the stream.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}
