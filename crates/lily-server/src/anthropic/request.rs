//! A request of Anthropic's API, read into the form that chat completions use.

use lily_text::{Message, Role, Tool, ToolCall};
use serde_json::{Map, Value, json};

use crate::chat::messages::{arguments, without_billing_header};
use crate::chat::request::{ChatRequest, log_unknown};
use crate::chat::thinking::{Thinking, thinking};
use crate::chat::tools::{ToolChoice, check_choice, check_name};
use crate::error::ApiError;
use crate::fields::{Fields, mismatch};
use crate::sampling;
use crate::service::App;

/// Every field that is read; the rest is ignored, with a debug line.
pub(crate) const KNOWN: &[&str] = &[
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

pub(crate) fn read(body: &Map<String, Value>, app: &App) -> Result<ChatRequest, ApiError> {
    let fields = Fields::new("", body);
    log_unknown(&fields, KNOWN);
    fields.string("model")?;
    let mut messages = Vec::new();
    if let Some(system) = system(&fields)? {
        messages.push(system);
    }
    fields.required("messages")?;
    for (at, item) in fields.array("messages")?.unwrap_or_default().iter().enumerate() {
        message(&format!("messages[{at}]"), item, &mut messages)?;
    }
    if messages.iter().all(|message| message.role == Role::System) {
        return Err(ApiError::field("messages", "expected at least one message, found none"));
    }
    let tools = tools(&fields)?;
    let (tool_choice, parallel_tool_calls) = tool_choice(&fields, &tools)?;
    // In this API thinking is off unless the request switches it on.
    let Thinking { options, budget } = thinking(&fields, false)?;
    Ok(ChatRequest {
        messages,
        tools,
        tool_choice,
        parallel_tool_calls,
        options,
        thinking_budget: budget,
        sampling: sampling::sampling(&fields, &app.service.sampling, app.service.text.vocab())?,
        max_tokens: sampling::max_tokens(&fields, &["max_tokens"])?,
        stop: sampling::stop(&fields, "stop_sequences")?,
        form: None,
        logprobs: None,
        choices: 1,
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: true,
    })
}

fn system(fields: &Fields<'_>) -> Result<Option<Message>, ApiError> {
    let texts = texts(&fields.at("system"), fields.get("system"))?;
    let texts = without_billing_header(texts);
    Ok((!texts.is_empty()).then(|| plain(Role::System, texts.join("\n\n"))))
}

fn plain(role: Role, content: String) -> Message {
    Message { role, content, reasoning: None, tool_calls: Vec::new(), tool_call_id: None }
}

/// A string, or text blocks.
fn texts(path: &str, value: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    for (path, block) in blocks(path, value)? {
        match kind(&path, &block)? {
            "text" => texts.push(text_of(&path, &block, "text")?),
            other => return Err(unreadable(&path, other)),
        }
    }
    Ok(texts)
}

/// The blocks of a content with their paths; a string is one text block.
fn blocks(path: &str, value: Option<&Value>) -> Result<Vec<(String, Value)>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(path.to_owned(), json!({"type": "text", "text": text}))]),
        Some(Value::Array(items)) => Ok(items.iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item.clone())).collect()),
        Some(other) => Err(ApiError::field(path, mismatch("a string or an array of blocks", other))),
    }
}

fn unreadable(path: &str, kind: &str) -> ApiError {
    ApiError::unsupported(format!("{path}.type"), format!("this server reads text, thinking and tools, found a block of type {kind:?}"))
}

/// Reads a message into one or several of the chat format: tool results have a message each.
fn message(path: &str, value: &Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let fields = Fields::of(path, value)?;
    fields.required("role")?;
    let content = blocks(&fields.at("content"), fields.get("content"))?;
    match fields.string("role")?.unwrap_or_default() {
        "user" => user(content, messages),
        "assistant" => {
            messages.push(assistant(content)?);
            Ok(())
        }
        "system" => {
            messages.push(plain(Role::System, texts(&fields.at("content"), fields.get("content"))?.concat()));
            Ok(())
        }
        other => Err(ApiError::field(fields.at("role"), format!("expected user or assistant, found the string {other:?}"))),
    }
}

fn user(content: Vec<(String, Value)>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut words = String::new();
    let only_results = !content.is_empty() && content.iter().all(|(_, block)| block["type"] == "tool_result");
    for (path, block) in content {
        let fields = Fields::of(&path, &block)?;
        match kind(&path, &block)? {
            "text" => words.push_str(&text_of(&path, &block, "text")?),
            "tool_result" => {
                let text = texts(&fields.at("content"), fields.get("content"))?.concat();
                let failed = fields.bool("is_error")?.unwrap_or(false) && !text.is_empty();
                let content = if failed { format!("Error: {text}") } else { text };
                let tool_call_id = fields.string("tool_use_id")?.map(str::to_owned);
                messages.push(Message { tool_call_id, ..plain(Role::Tool, content) });
            }
            other => return Err(unreadable(&path, other)),
        }
    }
    if !only_results {
        messages.push(plain(Role::User, words));
    }
    Ok(())
}

fn assistant(content: Vec<(String, Value)>) -> Result<Message, ApiError> {
    let mut message = plain(Role::Assistant, String::new());
    for (path, block) in content {
        let fields = Fields::of(&path, &block)?;
        match kind(&path, &block)? {
            "text" => message.content.push_str(&text_of(&path, &block, "text")?),
            "thinking" => message.reasoning.get_or_insert_default().push_str(&text_of(&path, &block, "thinking")?),
            "redacted_thinking" => {}
            "tool_use" => {
                fields.required("name")?;
                message.tool_calls.push(ToolCall {
                    id: fields.string("id")?.unwrap_or_default().to_owned(),
                    name: fields.string("name")?.unwrap_or_default().to_owned(),
                    arguments: arguments(fields.get("input")),
                });
            }
            other => return Err(unreadable(&path, other)),
        }
    }
    Ok(message)
}

fn kind<'a>(path: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    Fields::of(path, block)?.required("type")?;
    match &block["type"] {
        Value::String(kind) => Ok(kind),
        other => Err(ApiError::field(format!("{path}.type"), mismatch("a string", other))),
    }
}

fn text_of(path: &str, block: &Value, name: &str) -> Result<String, ApiError> {
    let fields = Fields::of(path, block)?;
    Ok(fields.string(name)?.unwrap_or_default().to_owned())
}

/// `input_schema` is what OpenAI calls `parameters`. Tools that Anthropic's own servers run are not there.
fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    for (at, item) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let path = format!("tools[{at}]");
        let tool = Fields::of(&path, item)?;
        if let Some(kind) = tool.string("type")?.filter(|kind| !matches!(*kind, "custom" | "function")) {
            tracing::warn!(kind, "a tool that only its own servers can run was left out");
            continue;
        }
        tool.required("name")?;
        let name = check_name(&tool.at("name"), tool.string("name")?.unwrap_or_default())?;
        let description = tool.string("description")?.map(str::to_owned);
        let parameters = tool.map("input_schema")?.cloned().map(Value::Object);
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(name));
        description.iter().for_each(|text| drop(function.insert("description".to_owned(), json!(text))));
        parameters.iter().for_each(|schema| drop(function.insert("parameters".to_owned(), schema.clone())));
        if tool.bool("strict")? == Some(true) {
            function.insert("strict".to_owned(), json!(true));
        }
        let source = json!({"type": "function", "function": function});
        tools.push(Tool { name, description, parameters, source });
    }
    Ok(tools)
}

fn tool_choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let path = fields.at("tool_choice");
    let Some(map) = fields.map("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let choice = Fields::new(&path, map);
    let parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let chosen = match choice.string("type")? {
        Some("auto") | None => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") => {
            choice.required("name")?;
            ToolChoice::Named(choice.string("name")?.unwrap_or_default().to_owned())
        }
        Some(other) => {
            return Err(ApiError::field(choice.at("type"), format!("expected auto, any, tool or none, found the string {other:?}")));
        }
    };
    check_choice(&path, chosen, tools).map(|chosen| (chosen, parallel))
}
