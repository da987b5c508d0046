//! `tools` and `tool_choice`.

use lily_text::Tool;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, mismatch};

/// Whether the model may, must or must not call a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolChoice {
    Auto,
    None,
    Required,
    Named(String),
}

/// The tools of a request's body, for programs that read a saved one. The error says which field is wrong.
pub fn read_tools(body: &Map<String, Value>) -> Result<Vec<Tool>, String> {
    tools(&Fields::new("", body)).map_err(|error| error.message)
}

/// Reads `tools`, and `functions` of the API before it.
pub(crate) fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, ApiError> {
    let name = if fields.get("tools").is_none() && fields.get("functions").is_some() { "functions" } else { "tools" };
    let path = fields.at(name);
    let items = fields.array(name)?.unwrap_or_default();
    items.iter().enumerate().map(|(at, item)| tool(&format!("{path}[{at}]"), item)).collect()
}

pub(crate) fn tool(path: &str, value: &Value) -> Result<Tool, ApiError> {
    let fields = Fields::of(path, value)?;
    if let Some(kind) = fields.string("type")?.filter(|kind| *kind != "function") {
        let message = format!("this server calls tools of type \"function\", found the string {kind:?}");
        return Err(ApiError::unsupported(fields.at("type"), message));
    }
    let function_path = fields.at("function");
    match fields.map("function")? {
        Some(map) => function(&Fields::new(&function_path, map), value.clone()),
        None => {
            // The function's fields beside the type, as in the Responses API: the chat format wants them inside.
            let mut inner = value.as_object().cloned().unwrap_or_default();
            inner.remove("type");
            let source = json!({"type": "function", "function": Value::Object(inner)});
            function(&fields, source)
        }
    }
}

fn function(fields: &Fields<'_>, source: Value) -> Result<Tool, ApiError> {
    fields.required("name")?;
    let name = check_name(&fields.at("name"), fields.string("name")?.unwrap_or_default())?;
    let description = fields.string("description")?.map(str::to_owned);
    let parameters = fields.map("parameters")?.cloned().map(Value::Object);
    fields.bool("strict")?; // read again by `Tool::is_strict`
    Ok(Tool { name, description, parameters, source })
}

/// The chat format writes a tool's name between `=` and `>` on a line of its own.
pub(crate) fn check_name(path: &str, name: &str) -> Result<String, ApiError> {
    let breaks = |char: char| char.is_whitespace() || char.is_control() || "<>".contains(char);
    if name.is_empty() || name.contains(breaks) {
        return Err(ApiError::field(path, format!("expected a name without spaces, `<` and `>`, found {name:?}")));
    }
    Ok(name.to_owned())
}

/// Reads `tool_choice` (and `function_call` of the API before it) against the request's tools.
pub(crate) fn tool_choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let field = if fields.get("tool_choice").is_none() && fields.get("functions").is_some() { "function_call" } else { "tool_choice" };
    let path = fields.at(field);
    let choice = match fields.get(field) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => by_word(&path, word)?,
        Some(Value::Object(map)) => by_object(&path, map)?,
        Some(other) => return Err(ApiError::field(path, mismatch("a string or an object", other))),
    };
    check_choice(&path, choice, tools)
}

/// A call that must be made needs a tool that is there.
pub(crate) fn check_choice(path: &str, choice: ToolChoice, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    match &choice {
        ToolChoice::Required if tools.is_empty() => Err(ApiError::field(path, "asks for a tool call; the request has no tools")),
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            Err(ApiError::field(path, format!("names the tool {name:?}; the request's tools are {names:?}")))
        }
        _ => Ok(choice),
    }
}

fn by_word(path: &str, word: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" | "any" => Ok(ToolChoice::Required),
        other => Err(ApiError::field(path, format!("expected auto, none, required or a function, found the string {other:?}"))),
    }
}

fn by_object(path: &str, map: &Map<String, Value>) -> Result<ToolChoice, ApiError> {
    let fields = Fields::new(path, map);
    let function_path = fields.at("function");
    let inner = fields.map("function")?.map(|map| Fields::new(&function_path, map)).unwrap_or(fields);
    if let Some(name) = inner.string("name")? {
        return Ok(ToolChoice::Named(name.to_owned()));
    }
    match fields.string("type")? {
        Some(word @ ("auto" | "none" | "required" | "any")) => by_word(path, word),
        Some("function" | "tool") => Err(ApiError::field(inner.at("name"), "this field is required")),
        Some(other) => Err(ApiError::unsupported(fields.at("type"), format!("expected \"function\", found the string {other:?}"))),
        None => Err(ApiError::field(path, "expected a function with a name")),
    }
}
