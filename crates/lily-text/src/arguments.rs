//! A tool call's arguments, written as one JSON object while they arrive.
//!
//! The format writes values bare; the tool's schema says what they are. A value that does not fit its schema
//! stays the text that it was: a call is never lost over one argument. Strings are passed on as they come,
//! anything else when it is complete.

use serde_json::Value;

use crate::python::write_escaped;
use crate::python_literal;
use crate::schema::{Parameters, Types};

/// Writes one call's arguments.
#[derive(Debug, Default)]
pub(crate) struct ArgumentsWriter {
    names: Vec<String>,
    value: Option<OpenValue>,
}

/// The argument that is being written.
#[derive(Debug)]
struct OpenValue {
    types: Types,
    /// Text that waits for its type to be known; empty once a string streams.
    waiting: String,
    streaming: bool,
}

impl ArgumentsWriter {
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Begins an argument; the one before must be closed.
    pub fn open(&mut self, name: &str, parameters: &Parameters, json: &mut String) {
        json.push_str(if self.names.is_empty() { "{" } else { ", " });
        json.push('"');
        write_escaped(name, false, json);
        json.push_str("\": ");
        self.names.push(name.to_owned());
        self.value = Some(OpenValue { types: parameters.types_of(name), waiting: String::new(), streaming: false });
    }

    pub fn push(&mut self, text: &str, json: &mut String) {
        let Some(value) = &mut self.value else { return };
        if value.streaming {
            write_escaped(text, false, json);
            return;
        }
        value.waiting.push_str(text);
        if value.must_be_string() {
            json.push('"');
            write_escaped(&value.waiting, false, json);
            value.waiting.clear();
            value.streaming = true;
        }
    }

    pub fn close(&mut self, json: &mut String) {
        match self.value.take() {
            None => {}
            Some(value) if value.streaming => json.push('"'),
            Some(value) => json.push_str(&convert(&value.waiting, value.types)),
        }
    }

    /// Ends the object; an open argument is closed with what it has.
    pub fn finish(&mut self, json: &mut String) {
        self.close(json);
        json.push_str(if self.names.is_empty() { "{}" } else { "}" });
    }
}

impl OpenValue {
    /// Whether no later text can make this anything but a string.
    fn must_be_string(&self) -> bool {
        if self.types == Types::STRING {
            return !self.waiting.is_empty();
        }
        let text = self.waiting.trim_start();
        self.types == Types::STRING.or(Types::NULL) && !["null", "None"].iter().any(|null| null.starts_with(text.trim_end()))
    }
}

/// The JSON for a bare value: the first allowed type that it fits, else a string.
pub(crate) fn convert(text: &str, types: Types) -> String {
    let bare = text.trim();
    let typed = if types == Types::STRING { None } else { as_typed(bare, types) };
    typed.unwrap_or_else(|| quoted(text))
}

fn as_typed(bare: &str, types: Types) -> Option<String> {
    if types.has(Types::NULL) && matches!(bare, "null" | "None") {
        return Some("null".into());
    }
    if types.has(Types::BOOLEAN) {
        match bare {
            "true" | "True" => return Some("true".into()),
            "false" | "False" => return Some("false".into()),
            _ => {}
        }
    }
    if let Some(number) = as_number(bare, types) {
        return Some(number);
    }
    let fits = |value: &Value| (types.has(Types::OBJECT) && value.is_object()) || (types.has(Types::ARRAY) && value.is_array());
    if !bare.starts_with(['{', '[', '(']) {
        return None;
    }
    match serde_json::from_str::<Value>(bare) {
        // The text itself, so that no digit of a number changes.
        Ok(value) if fits(&value) => Some(bare.to_owned()),
        Ok(_) => None,
        Err(_) => python_literal::parse(bare).filter(fits).map(|value| value.to_string()),
    }
}

/// A number keeps its digits; a whole number written with a fraction (`32.0`) fits an integer.
fn as_number(bare: &str, types: Types) -> Option<String> {
    if !types.has(Types::INTEGER.or(Types::NUMBER)) || !bare.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return None;
    }
    let number: serde_json::Number = serde_json::from_str(bare).ok()?;
    let digits_only = !bare.contains(['.', 'e', 'E']);
    if digits_only || types.has(Types::NUMBER) {
        return Some(bare.to_owned());
    }
    let whole = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 9e15)?;
    Some(format!("{whole:.0}"))
}

fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    write_escaped(text, false, &mut json);
    json.push('"');
    json
}
