//! JSON and numbers the way Python prints them: chat templates were written, and models trained, with
//! Python's `json.dumps`.

use serde_json::Value;

/// How `json.dumps` was asked to print. The default is the chat templates' `tojson`.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    pub item_separator: String,
    pub key_separator: String,
    /// Spaces per level; `None` prints one line.
    pub indent: Option<usize>,
    pub ascii: bool,
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle { item_separator: ", ".into(), key_separator: ": ".into(), indent: None, ascii: false, sort_keys: false }
    }
}

pub(crate) fn json(value: &Value, style: &JsonStyle) -> String {
    let mut out = String::new();
    write_value(value, style, 0, &mut out);
    out
}

fn write_value(value: &Value, style: &JsonStyle, level: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) if number.is_f64() => out.push_str(&float(number.as_f64().expect("is_f64"))),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_string(text, style.ascii, out),
        Value::Array(items) => {
            write_items(('[', ']'), items.iter(), style, level, out, |item, out| write_value(item, style, level + 1, out));
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| key.as_str());
            }
            write_items(('{', '}'), entries.into_iter(), style, level, out, |(key, item), out| {
                write_string(key, style.ascii, out);
                out.push_str(&style.key_separator);
                write_value(item, style, level + 1, out);
            });
        }
    }
}

fn write_items<T>(
    (open, close): (char, char),
    items: impl ExactSizeIterator<Item = T>,
    style: &JsonStyle,
    level: usize,
    out: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    let empty = items.len() == 0;
    out.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        write_line_break(style, level + 1, out);
        write(item, out);
    }
    if !empty {
        write_line_break(style, level, out);
    }
    out.push(close);
}

fn write_line_break(style: &JsonStyle, level: usize, out: &mut String) {
    if let Some(width) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', width * level));
    }
}

/// Escapes quotes, backslashes and control characters, nothing else: `/`, `<` and letters of any script stay.
pub(crate) fn write_escaped(text: &str, ascii: bool, out: &mut String) {
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\x1f' => write_unit(letter as u16, out),
            '\x7f'.. if ascii => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| write_unit(*unit, out)),
            _ => out.push(letter),
        }
    }
}

fn write_unit(unit: u16, out: &mut String) {
    out.push_str(&format!("\\u{unit:04x}"));
}

fn write_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    write_escaped(text, ascii, out);
    out.push('"');
}

/// `repr(float)`: the shortest digits that read back, plain between 1e-4 and 1e16, with an exponent beyond.
pub(crate) fn float(value: f64) -> String {
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".into()
        } else if value > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}
