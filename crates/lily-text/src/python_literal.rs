//! Python's literals: models trained on Python sometimes write an object argument as a `dict` is printed.

use serde_json::{Map, Number, Value};

const DEPTH_MAX: usize = 64;

/// The value of a literal made of dicts, lists, tuples, strings, numbers, `True`, `False` and `None`.
pub(crate) fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.skip_space();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self.dict(depth),
            '[' => self.items(']', depth),
            '(' => self.items(')', depth),
            '\'' | '"' => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        let mut map = Map::new();
        self.take("{");
        while !self.take("}") {
            self.skip_space();
            let key = self.string()?;
            self.take(":").then_some(())?;
            map.insert(key, self.value(depth + 1)?);
            if !self.take(",") {
                self.take("}").then_some(())?;
                break;
            }
        }
        Some(Value::Object(map))
    }

    fn items(&mut self, close: char, depth: usize) -> Option<Value> {
        let close = close.encode_utf8(&mut [0; 4]).to_owned();
        let mut items = Vec::new();
        self.rest = &self.rest[1..];
        while !self.take(&close) {
            items.push(self.value(depth + 1)?);
            if !self.take(",") {
                self.take(&close).then_some(())?;
                break;
            }
        }
        Some(Value::Array(items))
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
        let mut text = String::new();
        let mut letters = self.rest[1..].char_indices();
        while let Some((at, letter)) = letters.next() {
            if letter == quote {
                self.rest = &self.rest[1 + at + 1..];
                return Some(text);
            }
            if letter != '\\' {
                text.push(letter);
                continue;
            }
            match letters.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '\\' => text.push('\\'),
                '\'' => text.push('\''),
                '"' => text.push('"'),
                // Rarer escapes: the value is better kept as it was written.
                _ => return None,
            }
        }
        None
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            number => serde_json::from_str::<Number>(number).ok().map(Value::Number),
        }
    }

    /// Takes `symbol` after white space, if it stands there.
    fn take(&mut self, symbol: &str) -> bool {
        self.skip_space();
        let Some(rest) = self.rest.strip_prefix(symbol) else { return false };
        self.rest = rest;
        true
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }
}
