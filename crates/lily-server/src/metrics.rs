//! `GET /metrics`: counters and histograms in Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use lily_engine::Engine;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::figures::EngineFigures;
use crate::service::App;
use crate::usage::{Outcome, TokenWait};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishLabels {
    reason: &'static str,
}

/// What the server itself counts; the engine's own figures are read when they are asked for.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    answers: Family<FinishLabels, Counter>,
    first_token: Histogram,
    next_token: Histogram,
    queued: Histogram,
}

impl Metrics {
    pub fn new(engine: &Engine) -> Self {
        let mut registry = Registry::with_prefix("lily");
        registry.register_collector(Box::new(EngineFigures(engine.clone())));
        let requests = Family::default();
        registry.register("http_requests", "HTTP requests by route and status (499: the client left first)", requests.clone());
        let answers = Family::default();
        registry.register("answers", "Answers that ran to their end, by reason", answers.clone());
        let first_token = Histogram::new(exponential_buckets(0.005, 2.0, 16)); // 5 ms to 164 s
        registry.register("time_to_first_token_seconds", "From the request to its first token", first_token.clone());
        let next_token = Histogram::new(exponential_buckets(0.001, 2.0, 14)); // 1 ms to 8 s
        registry.register("inter_token_seconds", "From a token to the next of the same answer", next_token.clone());
        let queued = Histogram::new(exponential_buckets(0.001, 4.0, 10)); // 1 ms to 262 s
        registry.register("queue_seconds", "From the request to its slot", queued.clone());
        Metrics { registry, requests, answers, first_token, next_token, queued }
    }

    pub fn request(&self, route: &str, status: u16) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status: status.into() }).inc();
    }

    pub fn token_wait(&self, wait: TokenWait) {
        match wait {
            TokenWait::First(wait) => self.first_token.observe(wait.as_secs_f64()),
            TokenWait::Next(wait) => self.next_token.observe(wait.as_secs_f64()),
        }
    }

    pub fn answer(&self, outcome: &Outcome) {
        self.answers.get_or_create(&FinishLabels { reason: outcome.reason.as_str() }).inc();
        self.queued.observe(outcome.queued.as_secs_f64());
    }
}

pub(crate) async fn show(State(app): State<App>) -> Response {
    let mut text = String::new();
    if encode(&mut text, &app.metrics.registry).is_err() {
        text.clear(); // writing to a string cannot fail
    }
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}
