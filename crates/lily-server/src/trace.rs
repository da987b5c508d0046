//! `--trace`: a file for each answer with what a bug report needs: the rendered prompt, token ids, what the
//! state cache had, when each token came. `lily parse --trace FILE` reads the output of one again.
//!
//! Off unless a directory is given. Headers are never written; secrets are hidden ([`secrets`]), in the
//! token ids too. Files are readable by their owner only.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Instant, SystemTime};

use lily_engine::{Lookup, Sampling};
use serde_json::{Map, Value, json};

use crate::generate::{Job, Reading};
use crate::options::{ServerError, ServerOptions};
use crate::secrets;
use crate::service::App;

/// Makes the directory, so that a wrong one shows at the start.
pub(crate) fn prepare(options: &ServerOptions) -> Result<(), ServerError> {
    let Some(directory) = &options.trace_dir else { return Ok(()) };
    fs::create_dir_all(directory).map_err(|source| ServerError::TraceDir { directory: directory.clone(), source })
}

/// One answer while it proceeds; written when it is dropped, also when the client left first.
pub(crate) struct Trace {
    app: App,
    submitted: Instant,
    unix_ms: u64,
    prompt: Vec<u32>,
    output: Vec<u32>,
    /// When each output token came, in ms since the request was submitted.
    token_ms: Vec<u64>,
    /// Prompt tokens done, and when.
    prefilled: Vec<(usize, u64)>,
    asked: Map<String, Value>,
    cache: Value,
    finish: &'static str,
}

impl Trace {
    /// `None` where nothing is to be traced.
    pub fn start(app: &App, route: &str, job: &Job, choice: usize, sampling: &Sampling) -> Option<Box<Trace>> {
        app.options.trace_dir.as_ref()?;
        Some(Box::new(Trace {
            app: app.clone(),
            submitted: Instant::now(),
            unix_ms: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            prompt: job.prompt.clone(),
            output: Vec::new(),
            token_ms: Vec::new(),
            prefilled: Vec::new(),
            asked: asked(route, job, choice, sampling),
            cache: Value::Null,
            finish: "cancelled",
        }))
    }

    fn elapsed_ms(&self) -> u64 {
        self.submitted.elapsed().as_millis() as u64
    }

    pub fn started(&mut self, cached_tokens: usize, lookup: Lookup) {
        let Lookup { common_tokens, reason } = lookup;
        let started_ms = self.elapsed_ms();
        self.cache = json!({"cached_tokens": cached_tokens, "common_tokens": common_tokens, "reason": reason, "started_ms": started_ms});
    }

    pub fn prefilled(&mut self, done: usize) {
        self.prefilled.push((done, self.elapsed_ms()));
    }

    pub fn token(&mut self, token: u32) {
        self.output.push(token);
        self.token_ms.push(self.elapsed_ms());
    }

    pub fn finished(&mut self, reason: &'static str) {
        self.finish = reason;
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        let keys = &self.app.options.api_keys;
        let (prompt_text, prompt_tokens) = self.readable(&self.prompt);
        let (output_text, output_tokens) = self.readable(&self.output);
        let mut trace = self.asked.clone();
        trace.extend([
            ("time_unix_ms".to_owned(), json!(self.unix_ms)),
            ("finish".to_owned(), json!(self.finish)),
            ("cache".to_owned(), self.cache.clone()),
            ("prefilled_ms".to_owned(), json!(self.prefilled)),
            ("token_ms".to_owned(), json!(self.token_ms)),
            ("total_ms".to_owned(), json!(self.elapsed_ms())),
            ("prompt_text".to_owned(), json!(prompt_text)),
            ("output_text".to_owned(), json!(output_text)),
            ("prompt_tokens".to_owned(), json!(prompt_tokens)),
            ("output_tokens".to_owned(), json!(output_tokens)),
        ]);
        let mut trace = Value::Object(trace);
        secrets::redact(&mut trace, keys);

        let path = directory.join(format!("{}.json", self.app.new_id(&format!("{}-", self.unix_ms))));
        let mut file = private_file(&path)?;
        let fields = trace.as_object().into_iter().flatten();
        let lines: Vec<String> = fields.map(|(name, value)| format!("{}: {value}", json!(name))).collect();
        writeln!(file, "{{\n{}\n}}", lines.join(",\n"))
    }

    /// The text of tokens, and their ids without those that are part of a secret.
    fn readable(&self, tokens: &[u32]) -> (String, Vec<Option<u32>>) {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for &token in tokens {
            bytes.extend_from_slice(self.app.service.text.token_bytes(token).unwrap_or_default());
            ends.push(bytes.len());
        }
        let mut hidden = secrets::ranges(&bytes, &self.app.options.api_keys).into_iter().peekable();
        let mut start = 0;
        let ids = tokens.iter().zip(ends).map(|(&token, end)| {
            while hidden.next_if(|range| range.end <= start).is_some() {}
            let shown = hidden.peek().is_none_or(|range| range.start >= end);
            start = end;
            shown.then_some(token)
        });
        let ids = ids.collect();
        (String::from_utf8_lossy(&bytes).into_owned(), ids)
    }
}

/// What the request asked for, as far as it shapes the answer.
fn asked(route: &str, job: &Job, choice: usize, sampling: &Sampling) -> Map<String, Value> {
    let (tools, in_thinking, stop, raw) = match &job.reading {
        Reading::Chat(options) => {
            (options.tools.iter().map(|tool| tool.source.clone()).collect(), options.in_thinking, &options.stop, false)
        }
        Reading::Raw { stop } => (Vec::new(), false, stop, true),
    };
    let fields = json!({
        "lily": env!("CARGO_PKG_VERSION"),
        "route": route,
        "choice": choice,
        "sampling": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": sampling.logit_bias,
            "seed": sampling.seed,
        },
        "max_tokens": job.max_tokens,
        "stop": stop,
        "raw": raw,
        "in_thinking": in_thinking,
        "constrained": !job.constraints.is_empty(),
        "parallel_tool_calls": job.parallel_tool_calls,
        "tools": tools as Vec<Value>,
        "keep_at": job.keep_at,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(), // an object was written above
    }
}

/// Prompts are nobody else's business.
fn private_file(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Drop for Trace {
    /// Blocks for the milliseconds that it takes: whoever traces looks for a fault, not for speed.
    fn drop(&mut self) {
        let Some(directory) = &self.app.options.trace_dir else { return };
        if let Err(error) = self.write(directory) {
            tracing::warn!(%error, directory = %directory.display(), "a trace could not be written");
        }
    }
}
