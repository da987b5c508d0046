//! A request of the Responses API, read into the form that chat completions use.

use lily_text::{Message, Role, Tool, ToolCall};
use serde_json::{Map, Value};

use crate::chat::messages::{arguments, content, role, without_billing_header};
use crate::chat::request::{ChatRequest, log_unknown};
use crate::chat::thinking::{Thinking, thinking};
use crate::chat::tools::{tool, tool_choice};
use crate::error::ApiError;
use crate::fields::{Fields, mismatch};
use crate::format::{Form, response_format};
use crate::sampling;
use crate::service::App;

/// Every field that is read; the rest is ignored, with a debug line.
pub(crate) const KNOWN: &[&str] = &[
    "background",
    "chat_template_kwargs",
    "conversation",
    "enable_thinking",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
    "truncation",
    "user",
];

pub(crate) fn read(body: &Map<String, Value>, app: &App) -> Result<ChatRequest, ApiError> {
    let fields = Fields::new("", body);
    log_unknown(&fields, KNOWN);
    fields.string("model")?;
    stateless(&fields)?;
    let form = text_format(&fields)?;
    let tools = tools(&fields)?;
    let tool_choice = tool_choice(&fields, &tools)?;
    let Thinking { options, budget } = thinking(&fields, app.service.thinking)?;
    Ok(ChatRequest {
        messages: messages(&fields)?,
        tools,
        tool_choice,
        parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        options,
        thinking_budget: budget,
        sampling: sampling::sampling(&fields, &app.service.sampling, app.service.text.vocab())?,
        max_tokens: sampling::max_tokens(&fields, &["max_output_tokens"])?,
        stop: Vec::new(),
        form,
        logprobs: None,
        choices: 1,
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: true,
    })
}

/// Nothing is stored between requests.
fn stateless(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(fields.at(name), "this server stores no responses: send the whole conversation as input"));
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        return Err(ApiError::unsupported("background", "this server stores no responses: stream the answer or wait for it"));
    }
    Ok(())
}

/// Tools that OpenAI's own servers run are not there; the model is not told of them.
fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    for (at, item) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        match item["type"].as_str() {
            Some("function") | None => tools.push(tool(&format!("tools[{at}]"), item)?),
            Some(kind) => tracing::warn!(kind, "a tool that is no function was left out"),
        }
    }
    Ok(tools)
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        let texts = without_billing_header(vec![instructions.to_owned()]);
        messages.push(plain(Role::System, texts.concat()));
    }
    match fields.required("input")? {
        Value::String(text) => messages.push(plain(Role::User, text.clone())),
        Value::Array(items) if !items.is_empty() => {
            for (at, value) in items.iter().enumerate() {
                item(&format!("input[{at}]"), value, &mut messages)?;
            }
        }
        Value::Array(_) => return Err(ApiError::field("input", "expected at least one item, found none")),
        other => return Err(ApiError::field("input", mismatch("a string or an array of items", other))),
    }
    Ok(messages)
}

fn plain(role: Role, content: String) -> Message {
    Message { role, content, reasoning: None, tool_calls: Vec::new(), tool_call_id: None }
}

fn item(path: &str, value: &Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let fields = Fields::of(path, value)?;
    match fields.string("type")? {
        None | Some("message") => {
            fields.required("role")?;
            let role = role(&fields.at("role"), fields.string("role")?.unwrap_or_default())?;
            let texts = content(&fields.at("content"), fields.get("content"))?;
            if role == Role::Assistant {
                turn(messages).content.push_str(&texts.concat());
            } else {
                let texts = if role == Role::System { without_billing_header(texts) } else { texts };
                messages.push(plain(role, texts.concat()));
            }
        }
        Some("reasoning") => {
            let text = reasoning_text(&fields)?;
            turn(messages).reasoning.get_or_insert_default().push_str(&text);
        }
        Some("function_call") => {
            fields.required("name")?;
            let call = ToolCall {
                id: fields.string("call_id")?.unwrap_or_default().to_owned(),
                name: fields.string("name")?.unwrap_or_default().to_owned(),
                arguments: arguments(fields.get("arguments")),
            };
            turn(messages).tool_calls.push(call);
        }
        Some("function_call_output") => {
            let text = content(&fields.at("output"), fields.get("output"))?.concat();
            let tool_call_id = fields.string("call_id")?.map(str::to_owned);
            messages.push(Message { tool_call_id, ..plain(Role::Tool, text) });
        }
        Some(other) => {
            let message =
                format!("this server reads messages, reasoning, function calls and their outputs, found an item of type {other:?}");
            return Err(ApiError::unsupported(fields.at("type"), message));
        }
    }
    Ok(())
}

/// The assistant's turn that goes on: its reasoning, words and calls are separate items of one turn. Words
/// after a call begin a new one, as the model said them.
fn turn(messages: &mut Vec<Message>) -> &mut Message {
    if messages.last().is_none_or(|message| message.role != Role::Assistant) {
        messages.push(plain(Role::Assistant, String::new()));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// The thinking itself where it came back; else its summary. Encrypted reasoning of others is unreadable.
fn reasoning_text(fields: &Fields<'_>) -> Result<String, ApiError> {
    for name in ["content", "summary"] {
        let path = fields.at(name);
        let mut text = String::new();
        for (at, part) in fields.array(name)?.unwrap_or_default().iter().enumerate() {
            text.push_str(Fields::of(&format!("{path}[{at}]"), part)?.string("text")?.unwrap_or_default());
        }
        if !text.is_empty() {
            return Ok(text);
        }
    }
    Ok(String::new())
}

/// `text.format` is what chat completions call `response_format`.
fn text_format(fields: &Fields<'_>) -> Result<Option<Form>, ApiError> {
    let path = fields.at("text");
    let Some(map) = fields.map("text")? else { return Ok(None) };
    response_format(&Fields::new(&path, map), "format")
}
