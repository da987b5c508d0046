//! One line in the log per request, written when its answer has ended: also when the client left first.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};

use crate::service::App;

/// What a handler knows about the request that the log wants: filled in as the answer proceeds.
#[derive(Clone)]
pub(crate) struct Record {
    /// As the router spells it.
    pub route: Arc<str>,
    tokens: Arc<Mutex<Tokens>>,
}

/// Figures of a request that generates; zero for the others.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tokens {
    pub prompt: usize,
    pub cached: usize,
    pub generated: usize,
    pub first_token: Option<Duration>,
    pub finish: Option<&'static str>,
}

impl Record {
    pub fn update(&self, change: impl FnOnce(&mut Tokens)) {
        change(&mut self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn tokens(&self) -> Tokens {
        *self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Logs when dropped: after the last byte of the answer, or when the client's leaving dropped the work.
struct Line {
    app: App,
    method: String,
    path: String,
    started: Instant,
    status: Option<u16>,
    complete: bool,
    record: Record,
}

impl Drop for Line {
    fn drop(&mut self) {
        let tokens = self.record.tokens();
        // 499 as in nginx: the client closed the connection before it had the answer.
        let status = if self.complete { self.status.unwrap_or(499) } else { 499 };
        self.app.metrics.request(&self.record.route, status);
        tracing::info!(
            method = %self.method,
            path = %self.path,
            status,
            ms = self.started.elapsed().as_millis() as u64,
            first_token_ms = tokens.first_token.map(|first| first.as_millis() as u64),
            prompt = tokens.prompt,
            cached = tokens.cached,
            generated = tokens.generated,
            finish = tokens.finish,
            "request"
        );
    }
}

/// Middleware around every route.
pub(crate) async fn log(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).into();
    let record = Record { route, tokens: Arc::default() };
    request.extensions_mut().insert(record.clone());
    let mut line = Line {
        app,
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        started: Instant::now(),
        status: None,
        complete: false,
        record,
    };
    let response = next.run(request).await;
    line.status = Some(response.status().as_u16());
    let (parts, body) = response.into_parts();
    line.complete = body.is_end_stream();
    Response::from_parts(parts, Body::new(Logged { body, line }))
}

/// A body that carries its log line to its end.
struct Logged {
    body: Body,
    line: Line,
}

impl http_body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        // A body of known length is not polled again after its last frame.
        if frame.is_none() || self.body.is_end_stream() {
            self.line.complete = true;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
