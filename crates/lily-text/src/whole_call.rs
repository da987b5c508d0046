//! Calls that other models of the family write as JSON: `{"name": …, "arguments": {…}}` in the place of the
//! function, or a JSON object in the place of its parameters.

use serde_json::Value;

use crate::python::{JsonStyle, json};

/// Name and arguments of a call in JSON.
pub(crate) fn read_call(text: &str) -> Option<(String, String)> {
    let call: Value = serde_json::from_str(text.trim()).ok()?;
    let name = call["name"].as_str().filter(|name| !name.is_empty())?;
    let arguments = call.get("arguments").or(call.get("parameters"));
    let arguments = match arguments {
        None => "{}".to_owned(),
        Some(Value::String(text)) => object(text)?,
        Some(value) if value.is_object() => json(value, &JsonStyle::default()),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// The JSON object that stands before `</function>`, or at the end.
pub(crate) fn read_body(text: &str) -> Option<String> {
    let ends = text.match_indices("</function>").map(|(at, _)| at).chain([text.len()]);
    ends.take(64).find_map(|end| object(&text[..end]))
}

/// The text of an object, as it stands.
fn object(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    value.is_object().then(|| text.trim().to_owned())
}
