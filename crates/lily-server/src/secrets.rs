//! Finds what must not stand in a bug report: the server's own keys, and texts in the well-known shapes of
//! keys and tokens. What has no such shape (a password in a sentence) is found by nobody.

use std::ops::Range;

use serde_json::Value;

const REDACTED: &str = "[redacted]";

/// How keys of well-known services begin; a run of key characters follows.
const PREFIXES: [&[u8]; 14] = [
    b"sk-",
    b"sk_live_",
    b"pk_live_",
    b"ghp_",
    b"gho_",
    b"ghs_",
    b"github_pat_",
    b"glpat-",
    b"xoxb-",
    b"xoxp-",
    b"hf_",
    b"AKIA",
    b"AIza",
    b"eyJ", // a JSON web token
];

/// Words before a key of any shape, as in a header.
const WORDS: [&[u8]; 4] = [b"Bearer ", b"bearer ", b"Basic ", b"x-api-key: "];

/// Shorter runs are words.
const RUN_MIN: usize = 12;

const PEM_BEGIN: &[u8] = b"-----BEGIN ";
const PEM_END: &[u8] = b"-----END ";

/// The byte ranges of `text` to hide, ascending and apart. `keys` are hidden wherever they stand.
pub(crate) fn ranges(text: &[u8], keys: &[String]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match secret_at(text, at, keys) {
            Some(end) => {
                found.push(at..end);
                at = end;
            }
            None => at += 1,
        }
    }
    found
}

/// Where the secret that begins here ends.
fn secret_at(text: &[u8], at: usize, keys: &[String]) -> Option<usize> {
    let rest = &text[at..];
    if let Some(key) = keys.iter().find(|key| rest.starts_with(key.as_bytes())) {
        return Some(at + key.len());
    }
    if rest.starts_with(PEM_BEGIN) {
        return private_key(rest).map(|length| at + length);
    }
    let before = &text[..at];
    if before.last().is_some_and(|&byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return None; // in the middle of a word
    }
    let run = rest.iter().take_while(|&&byte| is_key_byte(byte)).count();
    let secret = PREFIXES.iter().any(|prefix| rest.starts_with(prefix)) || WORDS.iter().any(|word| before.ends_with(word));
    (secret && run >= RUN_MIN).then_some(at + run)
}

/// Length of the block; one that is cut off is hidden to its end.
fn private_key(text: &[u8]) -> Option<usize> {
    let line = &text[..text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len())];
    find(line, b"PRIVATE KEY")?;
    let Some(end) = find(text, PEM_END) else { return Some(text.len()) };
    let dashes = end + PEM_END.len();
    Some(find(&text[dashes..], b"-----").map_or(text.len(), |length| dashes + length + 5))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte)
}

/// The text with every secret replaced.
pub(crate) fn redacted(text: &str, keys: &[String]) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut done = 0;
    // Secrets begin and end at characters: keys are ASCII, and so is what surrounds a private key's block.
    for range in ranges(text.as_bytes(), keys) {
        clean.push_str(&text[done..range.start]);
        clean.push_str(REDACTED);
        done = range.end;
    }
    clean.push_str(&text[done..]);
    clean
}

/// Cleans every string inside, names included.
pub(crate) fn redact(value: &mut Value, keys: &[String]) {
    match value {
        Value::String(text) => *text = redacted(text, keys),
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, keys)),
        Value::Object(map) => {
            let fields = std::mem::take(map).into_iter();
            *map = fields.map(|(name, value)| (redacted(&name, keys), value)).collect();
            map.values_mut().for_each(|value| redact(value, keys));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn well_known_shapes_go_and_words_stay() {
        let keys = ["sesame".to_owned()];
        let cases = [
            ("open sesame!", "open [redacted]!"),
            ("key sk-abcDEF0123456789, and more", "key [redacted], and more"),
            ("Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer [redacted]"),
            ("curl -H 'x-api-key: 0123456789abcdef'", "curl -H 'x-api-key: [redacted]'"),
            ("A=ghp_0123456789abcdefghij\n", "A=[redacted]\n"),
            ("risk-averse-people-here sk-short hf_model Bearer of news", "risk-averse-people-here sk-short hf_model Bearer of news"),
            ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY----- end", "[redacted] end"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIö", "[redacted]"),
            ("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\nMII"),
            ("äö sk-äöäöäöäöäöäöäö", "äö sk-äöäöäöäöäöäöäö"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(redacted(text, &keys), expected);
        }
    }

    #[test]
    fn strings_at_any_depth() {
        let mut value = json!({"a": ["sesame", 1], "sesame": {"b": "x sesame"}});
        redact(&mut value, &["sesame".to_owned()]);
        assert_eq!(value, json!({"a": ["[redacted]", 1], "[redacted]": {"b": "x [redacted]"}}));
    }
}
