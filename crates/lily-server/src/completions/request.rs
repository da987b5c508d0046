//! A text completion request, read and checked.

use lily_engine::Sampling;
use lily_text::Text;
use serde_json::{Map, Value};

use crate::chat::request::log_unknown;
use crate::error::ApiError;
use crate::fields::{Fields, mismatch};
use crate::format::{self, Form};
use crate::generate::{Job, Reading};
use crate::sampling::{self, TOP_LOGPROBS_MAX, token_ids};
use crate::service::App;

/// Prompts that one request may bring.
const PROMPTS_MAX: usize = 64;

/// Every field that is read; the rest is ignored, with a debug line.
pub(crate) const KNOWN: &[&str] = &[
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_k",
    "top_p",
    "user",
];

/// A prompt as it was sent.
#[derive(Debug)]
pub(crate) enum PromptSource {
    Text(String),
    Tokens(Vec<u32>),
}

pub(crate) struct CompletionRequest {
    pub prompts: Vec<PromptSource>,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub form: Option<Form>,
    pub logprobs: Option<usize>,
    /// Answers per prompt.
    pub choices: usize,
    pub echo: bool,
    pub stream: bool,
    pub include_usage: bool,
}

impl CompletionRequest {
    pub fn read(body: &Map<String, Value>, app: &App) -> Result<Self, ApiError> {
        let fields = Fields::new("", body);
        log_unknown(&fields, KNOWN);
        fields.string("model")?;
        let prompts = prompts(fields.required("prompt")?)?;
        let choices = sampling::choices(&fields)?;
        if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported("suffix", "this server continues text, it does not fill gaps"));
        }
        if fields.integer("best_of", 1, i64::MAX)?.is_some_and(|best_of| best_of as usize > choices) {
            return Err(ApiError::unsupported("best_of", "this server returns every answer that it generates: use n"));
        }
        let echo = fields.bool("echo")?.unwrap_or(false);
        let logprobs = logprobs(&fields)?;
        if echo && logprobs.is_some() {
            return Err(ApiError::unsupported("echo", "log-probabilities of the prompt are not supported: send echo or logprobs"));
        }
        let (stream, include_usage) = sampling::streaming(&fields)?;
        Ok(CompletionRequest {
            prompts,
            sampling: sampling::sampling(&fields, &app.service.sampling, app.service.text.vocab())?,
            max_tokens: sampling::max_tokens(&fields, &["max_tokens", "max_completion_tokens"])?,
            stop: sampling::stop(&fields, "stop")?,
            form: format::read(&fields)?,
            logprobs,
            choices,
            echo,
            stream,
            include_usage,
        })
    }

    /// One job per prompt, and each prompt's text where it is to be echoed.
    pub async fn jobs(self, app: &App) -> Result<(Vec<Job>, Vec<String>), ApiError> {
        let text = app.service.text.clone();
        let encoding = tokio::task::spawn_blocking(move || self.encode(&text));
        encoding.await.map_err(|_| ApiError::internal("encoding the prompt failed"))?
    }

    fn encode(self, text: &Text) -> Result<(Vec<Job>, Vec<String>), ApiError> {
        let (mut jobs, mut echoes) = (Vec::new(), Vec::new());
        for source in self.prompts {
            let prompt = match source {
                PromptSource::Text(content) => text.encode(&content)?,
                PromptSource::Tokens(tokens) => tokens,
            };
            echoes.push(if self.echo { text.decode(&prompt)? } else { String::new() });
            jobs.push(Job {
                prompt,
                keep_at: Vec::new(),
                sampling: self.sampling.clone(),
                max_tokens: self.max_tokens,
                logprobs: self.logprobs,
                reading: Reading::Raw { stop: self.stop.clone() },
                choices: self.choices,
                parallel_tool_calls: true,
                constraints: format::constraints(text, self.form.clone(), false, None, self.choices)?,
            });
        }
        Ok((jobs, echoes))
    }
}

/// A text, token ids, or an array of either.
fn prompts(value: &Value) -> Result<Vec<PromptSource>, ApiError> {
    let expected = "a string, an array of strings, or arrays of token ids";
    let items = match value {
        Value::String(text) => return Ok(vec![PromptSource::Text(text.clone())]),
        Value::Array(items) => items,
        other => return Err(ApiError::field("prompt", mismatch(expected, other))),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![PromptSource::Tokens(token_ids("prompt", items)?)]);
    }
    if items.is_empty() || items.len() > PROMPTS_MAX {
        return Err(ApiError::field("prompt", format!("expected 1 to {PROMPTS_MAX} prompts, found {}", items.len())));
    }
    let read = |(at, item): (usize, &Value)| match item {
        Value::String(text) => Ok(PromptSource::Text(text.clone())),
        Value::Array(ids) => Ok(PromptSource::Tokens(token_ids(&format!("prompt[{at}]"), ids)?)),
        other => Err(ApiError::field(format!("prompt[{at}]"), mismatch("a string or an array of token ids", other))),
    };
    items.iter().enumerate().map(read).collect()
}

/// The number of alternatives; some clients send the chat API's `true` and `false`.
fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    match fields.get("logprobs") {
        Some(Value::Bool(on)) => Ok(on.then_some(0)),
        _ => Ok(fields.integer("logprobs", 0, TOP_LOGPROBS_MAX)?.map(|top| top as usize)),
    }
}
