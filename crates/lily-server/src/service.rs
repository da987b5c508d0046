//! What the server serves, and what its handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use lily_engine::{Engine, Sampling};
use lily_text::Text;

use crate::metrics::Metrics;
use crate::options::ServerOptions;

/// One model behind the API.
pub struct Service {
    pub engine: Engine,
    pub text: Arc<Text>,
    /// The id that `/v1/models` shows; requests may name any.
    pub model: String,
    /// For what a request does not say.
    pub sampling: Sampling,
    /// Whether the model thinks where a request does not say.
    pub thinking: bool,
}

impl Service {
    /// With the checkpoint's own defaults.
    pub fn new(engine: Engine, text: Arc<Text>, model: impl Into<String>) -> Self {
        let sampling = checkpoint_sampling(&text);
        Service { engine, text, model: model.into(), sampling, thinking: true }
    }
}

/// Sampling as the checkpoint's `generation_config.json` wishes it. Where it is silent: temperature 1, as
/// transformers has it.
pub fn checkpoint_sampling(text: &Text) -> Sampling {
    let given = text.sampling_defaults();
    let none = Sampling::default();
    let temperature = if given.do_sample == Some(false) { 0.0 } else { given.temperature.unwrap_or(1.0) };
    Sampling {
        temperature,
        top_k: given.top_k.unwrap_or(none.top_k),
        top_p: given.top_p.unwrap_or(none.top_p),
        min_p: given.min_p.unwrap_or(none.min_p),
        presence_penalty: given.presence_penalty.unwrap_or(none.presence_penalty),
        frequency_penalty: given.frequency_penalty.unwrap_or(none.frequency_penalty),
        repetition_penalty: given.repetition_penalty.unwrap_or(none.repetition_penalty),
        ..none
    }
}

/// State of every handler; cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    pub service: Service,
    pub options: ServerOptions,
    pub metrics: Metrics,
    /// Answers so far: part of their ids.
    answers: AtomicU64,
    /// Seconds since 1970: when the model "was created", as `/v1/models` asks.
    pub started_unix_s: u64,
}

impl App {
    pub fn new(service: Service, options: ServerOptions) -> Self {
        let metrics = Metrics::new(&service.engine);
        App(Arc::new(Shared { service, options, metrics, answers: AtomicU64::new(0), started_unix_s: unix_seconds() }))
    }

    /// An id that no other answer of this server, nor of one started in another nanosecond, has.
    pub fn new_id(&self, prefix: &str) -> String {
        let nanoseconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        format!("{prefix}{nanoseconds:016x}{:08x}", self.answers.fetch_add(1, Ordering::Relaxed))
    }
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
