//! A chat completion request, read and checked; nothing has been rendered or submitted yet.

use lily_engine::Sampling;
use lily_text::{ChatOptions, Grammar, Message, OutputOptions, Text, Tool};
use serde_json::{Map, Value};

use super::messages::messages;
use super::thinking::{Thinking, thinking};
use super::tools::{ToolChoice, tool_choice, tools};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::format::{self, Form};
use crate::generate::{Job, Reading};
use crate::sampling::{self, TOP_LOGPROBS_MAX};
use crate::service::App;

/// Every field that is read, here or in the modules that read a part. The rest is ignored, with a debug line.
pub(crate) const KNOWN: &[&str] = &[
    "chat_template_kwargs",
    "enable_thinking",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "preserve_thinking",
    "reasoning",
    "reasoning_effort",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "think",
    "thinking",
    "thinking_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    // Without effect on the answer of a single local model.
    "metadata",
    "model",
    "service_tier",
    "store",
    "user",
];

/// A conversation to continue: what chat completions, responses and messages have in common.
pub(crate) struct ChatRequest {
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    pub parallel_tool_calls: bool,
    pub options: ChatOptions,
    pub thinking_budget: Option<usize>,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub form: Option<Form>,
    pub logprobs: Option<usize>,
    pub choices: usize,
    pub stream: bool,
    pub include_usage: bool,
}

impl ChatRequest {
    /// Reads a body of `/v1/chat/completions`.
    pub fn read(body: &Map<String, Value>, app: &App) -> Result<Self, ApiError> {
        let fields = Fields::new("", body);
        log_unknown(&fields, KNOWN);
        let messages = messages(&fields)?;
        fields.string("model")?;
        let tools = tools(&fields)?;
        let tool_choice = tool_choice(&fields, &tools)?;
        let Thinking { options, budget } = thinking(&fields, app.service.thinking)?;
        let (stream, include_usage) = sampling::streaming(&fields)?;
        Ok(ChatRequest {
            messages,
            tools,
            tool_choice,
            parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            options,
            thinking_budget: budget,
            sampling: sampling::sampling(&fields, &app.service.sampling, app.service.text.vocab())?,
            max_tokens: sampling::max_tokens(&fields, &["max_completion_tokens", "max_tokens"])?,
            stop: sampling::stop(&fields, "stop")?,
            form: format::read(&fields)?,
            logprobs: logprobs(&fields)?,
            choices: sampling::choices(&fields)?,
            stream,
            include_usage,
        })
    }

    /// Renders the prompt and compiles what the answer is held to. Both can take a while: off the runtime's
    /// threads.
    pub async fn job(self, app: &App) -> Result<Job, ApiError> {
        let text = app.service.text.clone();
        let rendering = tokio::task::spawn_blocking(move || self.render(&text));
        rendering.await.map_err(|_| ApiError::internal("rendering the prompt failed"))?
    }

    fn render(self, text: &Text) -> Result<Job, ApiError> {
        let form = self.form();
        // Without tools the model is not told of any, and what looks like a call is text.
        let tools = if self.tool_choice == ToolChoice::None { Vec::new() } else { self.tools };
        let prompt = text.prompt(&self.messages, &tools, &self.options)?;
        let constraints = format::constraints(text, form, prompt.in_thinking, self.thinking_budget, self.choices)?;
        Ok(Job {
            prompt: prompt.tokens,
            keep_at: prompt.boundaries,
            sampling: self.sampling,
            max_tokens: self.max_tokens,
            logprobs: self.logprobs,
            reading: Reading::Chat(OutputOptions { in_thinking: prompt.in_thinking, tools, stop: self.stop }),
            choices: self.choices,
            parallel_tool_calls: self.parallel_tool_calls,
            constraints,
        })
    }

    /// A call that must be made goes before the form of an answer in words; where calls may be made, the form
    /// holds for the answer that is none.
    fn form(&self) -> Option<Form> {
        let parallel = self.parallel_tool_calls;
        let must = |tools| Some(Form { path: "tools".to_owned(), grammar: Grammar::ToolCalls { tools, parallel } });
        match (&self.tool_choice, &self.form) {
            (ToolChoice::Required, _) => must(self.tools.clone()),
            (ToolChoice::Named(name), _) => must(self.tools.iter().filter(|tool| tool.name == *name).cloned().collect()),
            (ToolChoice::Auto, Some(form)) if !self.tools.is_empty() => Some(form.or_calls(self.tools.clone(), parallel)),
            (ToolChoice::Auto, None) if self.tools.iter().any(Tool::is_strict) => {
                Some(Form { path: "tools".to_owned(), grammar: Grammar::TextAndToolCalls { tools: self.tools.clone() } })
            }
            (ToolChoice::Auto | ToolChoice::None, form) => form.clone(),
        }
    }
}

/// `logprobs: true` with `top_logprobs` alternatives.
fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let on = fields.bool("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)? {
        Some(top) if top > 0 && !on => Err(ApiError::field(fields.at("top_logprobs"), "needs \"logprobs\": true beside it")),
        top => Ok(on.then(|| top.unwrap_or(0) as usize)),
    }
}

/// Fields that nobody reads are no error: clients send many.
pub(crate) fn log_unknown(fields: &Fields<'_>, known: &[&str]) {
    let unknown: Vec<&str> = fields.names().filter(|name| !known.contains(name) && !format::FIELDS.contains(name)).collect();
    if !unknown.is_empty() {
        tracing::debug!(?unknown, "fields that this server does not know were ignored");
    }
}
