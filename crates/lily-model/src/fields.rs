//! Reading `config.json` field by field, so that every message names the field, what was expected and
//! what was found.

use serde_json::{Map, Value};

use crate::error::ModelError;

/// The text of `config.json` as JSON.
pub(crate) fn parse(text: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(text).map_err(|fault| ModelError::Config(format!("not valid JSON: {fault}")))
}

/// An object of `config.json` and the path that led to it.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The whole file.
    pub fn root(json: &'a Value) -> Result<Self, ModelError> {
        match json {
            Value::Object(object) => Ok(Fields { object, path: String::new() }),
            other => Err(ModelError::Config(format!("expected an object, found {}", shown(other)))),
        }
    }

    /// The object under `name`, if there is one.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields { object, path: self.path_of(name) + "." })),
            Some(other) => Err(self.unlike(name, "an object", other)),
        }
    }

    /// The value under `name`; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Every field in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }

    /// A whole number from 1 to `most`.
    pub fn count(&self, name: &str, most: usize) -> Result<usize, ModelError> {
        self.optional_count(name, most)?.ok_or_else(|| self.missing(name, &format!("a whole number from 1 to {most}")))
    }

    pub fn optional_count(&self, name: &str, most: usize) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64() {
            Some(count) if (1..=most as u64).contains(&count) => Ok(Some(count as usize)),
            _ => Err(self.unlike(name, &format!("a whole number from 1 to {most}"), value)),
        }
    }

    /// A number above zero.
    pub fn positive(&self, name: &str) -> Result<f64, ModelError> {
        self.optional_positive(name)?.ok_or_else(|| self.missing(name, "a number above 0"))
    }

    pub fn optional_positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
            _ => Err(self.unlike(name, "a number above 0", value)),
        }
    }

    pub fn optional_flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.unlike(name, "true or false", value))
    }

    pub fn optional_text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.unlike(name, "a string", value))
    }

    pub fn missing(&self, name: &str, expected: &str) -> ModelError {
        ModelError::Config(format!("{}: expected {expected}, the field is missing", self.path_of(name)))
    }

    /// The error of a field that has another value than it should.
    pub fn unlike(&self, name: &str, expected: &str, found: &Value) -> ModelError {
        ModelError::Config(format!("{}: expected {expected}, found {}", self.path_of(name), shown(found)))
    }

    pub fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }
}

/// A value as JSON, cut where it would flood a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
