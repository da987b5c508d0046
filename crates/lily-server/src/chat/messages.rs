//! The conversation of a request, from OpenAI's spelling (and its relatives') to the chat format's.

use lily_text::{Message, Role, ToolCall};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, mismatch};

/// A text block that some agents put first in the system prompt; it changes with every request, so
/// rendering it would keep any prefix from ever being found again.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Reads `messages`.
pub(crate) fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let path = fields.at("messages");
    fields.required("messages")?;
    let items = fields.array("messages")?.unwrap_or_default();
    if items.is_empty() {
        return Err(ApiError::field(path, "expected at least one message, found none"));
    }
    items.iter().enumerate().map(|(at, item)| message(&format!("{path}[{at}]"), item)).collect()
}

fn message(path: &str, value: &Value) -> Result<Message, ApiError> {
    let fields = Fields::of(path, value)?;
    fields.required("role")?;
    let role = role(&fields.at("role"), fields.string("role")?.unwrap_or_default())?;
    let mut content = content(&fields.at("content"), fields.get("content"))?;
    if role == Role::System {
        content = without_billing_header(content);
    }
    let assistant = role == Role::Assistant;
    Ok(Message {
        role,
        content: content.concat(),
        reasoning: if assistant { reasoning(&fields)? } else { None },
        tool_calls: if assistant { tool_calls(&fields)? } else { Vec::new() },
        tool_call_id: fields.string("tool_call_id")?.map(str::to_owned),
    })
}

pub(crate) fn role(path: &str, name: &str) -> Result<Role, ApiError> {
    match name {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" | "function" => Ok(Role::Tool),
        other => {
            Err(ApiError::field(path, format!("expected one of system, developer, user, assistant, tool; found the string {other:?}")))
        }
    }
}

/// A string, an array of parts, or nothing: as texts, one per part.
pub(crate) fn content(path: &str, value: Option<&Value>) -> Result<Vec<String>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (at, part) in parts.iter().enumerate() {
                texts.extend(part_text(&format!("{path}[{at}]"), part)?);
            }
            Ok(texts)
        }
        Some(other) => Err(ApiError::field(path, mismatch("a string or an array of parts", other))),
    }
}

fn part_text(path: &str, part: &Value) -> Result<Option<String>, ApiError> {
    if let Value::String(text) = part {
        return Ok(Some(text.clone()));
    }
    let fields = Fields::of(path, part)?;
    let kind = fields.string("type")?.unwrap_or("text");
    let text = match kind {
        "text" | "input_text" | "output_text" => fields.string("text")?,
        "refusal" => fields.string("refusal")?,
        // Some agents send their own thinking back as parts; the chat format has its own place for it.
        "thinking" | "redacted_thinking" | "reasoning" => None,
        other => {
            let message = format!("this server reads text only, found a part of type {other:?}");
            return Err(ApiError::unsupported(fields.at("type"), message));
        }
    };
    Ok(text.map(str::to_owned))
}

/// Drops the billing block: a part of its own, or the first line where a client joined its parts.
pub(crate) fn without_billing_header(mut texts: Vec<String>) -> Vec<String> {
    let Some(first) = texts.first_mut() else { return texts };
    if !first.starts_with(BILLING_HEADER) {
        return texts;
    }
    match first.split_once('\n') {
        Some((_, rest)) => *first = rest.trim_start_matches('\n').to_owned(),
        None => drop(texts.remove(0)),
    }
    texts
}

/// An assistant's thinking comes back under either name.
fn reasoning(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let first = fields.string("reasoning_content")?;
    let second = fields.string("reasoning")?;
    Ok(first.or(second).filter(|text| !text.is_empty()).map(str::to_owned))
}

fn tool_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, ApiError> {
    let path = fields.at("tool_calls");
    let mut calls = Vec::new();
    for (at, item) in fields.array("tool_calls")?.unwrap_or_default().iter().enumerate() {
        let path = format!("{path}[{at}]");
        let call = Fields::of(&path, item)?;
        let id = call.string("id")?.unwrap_or_default().to_owned();
        let function_path = call.at("function");
        let function = match call.map("function")? {
            Some(map) => Fields::new(&function_path, map),
            None => call, // the name beside the id, as in the Responses API
        };
        calls.push(named_call(&function, id)?);
    }
    // The API before tools: one call, no id.
    let function_path = fields.at("function_call");
    if let Some(map) = fields.map("function_call")?.filter(|_| calls.is_empty()) {
        calls.push(named_call(&Fields::new(&function_path, map), String::new())?);
    }
    Ok(calls)
}

fn named_call(function: &Fields<'_>, id: String) -> Result<ToolCall, ApiError> {
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default().to_owned();
    Ok(ToolCall { id, name, arguments: arguments(function.get("arguments")) })
}

/// What the model once wrote may be broken; that must not end the conversation.
pub(crate) fn arguments(value: Option<&Value>) -> Map<String, Value> {
    let parsed = match value {
        Some(Value::Object(map)) => return map.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        _ => None,
    };
    match parsed {
        Some(Value::Object(map)) => map,
        // Encoded twice: some proxies do.
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_billing_header_goes_and_nothing_else() {
        let cases: [(&[&str], &[&str]); 5] = [
            (&["x-anthropic-billing-header: cc_version=1; cch=36ee5;", "You are"], &["You are"]),
            (&["x-anthropic-billing-header: cch=1;\n\nYou are"], &["You are"]),
            (&["You are", "x-anthropic-billing-header: cch=1;"], &["You are", "x-anthropic-billing-header: cch=1;"]),
            (&["x-anthropic-billing-header: cch=1;"], &[]),
            (&[], &[]),
        ];
        for (given, expected) in cases {
            assert_eq!(without_billing_header(given.iter().map(|text| (*text).to_owned()).collect()), expected);
        }
    }

    #[test]
    fn broken_arguments_become_an_empty_mapping() {
        let text = |text: &str| Value::String(text.to_owned());
        for value in [text(""), text("{\"a\":"), text("[1]"), text("null"), Value::Null, Value::Bool(true)] {
            assert!(arguments(Some(&value)).is_empty(), "{value}");
        }
        assert_eq!(arguments(Some(&text("{\"a\":1}")))["a"], 1);
        assert_eq!(arguments(Some(&text("\"{\\\"a\\\":1}\"")))["a"], 1);
    }
}
