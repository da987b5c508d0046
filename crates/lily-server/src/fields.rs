//! Reading fields of a request: `null` is absent, a wrong type names the field and says what was
//! expected and what was found, unknown fields are left alone.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object of a request and the path that leads to it, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    path: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// `path` is empty for the request itself.
    pub fn new(path: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { path, map }
    }

    /// Reads `value` as an object.
    pub fn of(path: &'a str, value: &'a Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { path, map }),
            other => Err(ApiError::field(path, format!("expected an object, found {}", describe(other)))),
        }
    }

    /// The path of one of the object's fields.
    pub fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value unless it is absent or `null`.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    pub fn required(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name).ok_or_else(|| ApiError { code: Some("missing_field"), ..ApiError::field(self.at(name), "this field is required") })
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.typed(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn map(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A number in `min..=max`.
    pub fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(number) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if (min..=max).contains(&number) {
            return Ok(Some(number));
        }
        Err(ApiError::field(self.at(name), format!("expected a number from {min} to {max}, found {number}")))
    }

    /// An integer in `min..=max`; `3.0` counts as one.
    pub fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let Some(integer) = self.typed(name, "an integer", as_integer)? else { return Ok(None) };
        if (min..=max).contains(&integer) {
            return Ok(Some(integer));
        }
        let range = if max == i64::MAX { format!("an integer of at least {min}") } else { format!("an integer from {min} to {max}") };
        Err(ApiError::field(self.at(name), format!("expected {range}, found {integer}")))
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(ApiError { code: Some("invalid_type"), ..ApiError::field(self.at(name), mismatch(expected, value)) }),
        }
    }
}

/// `expected a number, found the string "hot"`.
pub(crate) fn mismatch(expected: &str, found: &Value) -> String {
    format!("expected {expected}, found {}", describe(found))
}

/// An integer, also where a client wrote `8.0`.
pub(crate) fn as_integer(value: &Value) -> Option<i64> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_u64().map(|_| i64::MAX)).or_else(|| value.as_f64().and_then(whole))
}

/// A value for a message: its kind, and the value itself where that is short.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(value) if value.chars().count() <= 40 => format!("the string {value:?}"),
        Value::String(value) => format!("a string of {} characters", value.chars().count()),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
