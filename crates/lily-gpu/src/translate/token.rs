//! Words, numbers and punctuation of a kernel source, each with the place it came from.

use super::Place;

/// One token with the white space (and line ends) before it. The last token of a source has no text.
#[derive(Clone, Debug)]
pub struct Token {
    pub space: String,
    pub text: String,
    pub place: Place,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether a statement can start after this token.
    pub fn ends_statement(&self) -> bool {
        matches!(self.text.as_str(), ";" | "{" | "}") || self.text.starts_with('#')
    }
}

/// Splits text that has no comments. `place` is where its first line comes from.
pub fn lex(text: &str, mut place: Place) -> Result<Vec<Token>, String> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let mut space = String::new();
        while at < chars.len() && chars[at].is_whitespace() {
            place.line += usize::from(chars[at] == '\n');
            space.push(chars[at]);
            at += 1;
        }
        let end = match chars.get(at) {
            None => at,
            Some('#') => (at..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len()),
            Some('"') => string_end(&chars, at).ok_or_else(|| place.fault("a string that does not end on its line"))?,
            Some(&first) if is_word(first) => word_end(&chars, at),
            Some(&first) if matches!(first, '[' | ']') && chars.get(at + 1) == Some(&first) => at + 2,
            Some(_) => at + 1,
        };
        tokens.push(Token { space, text: chars[at..end].iter().collect(), place: place.clone() });
        at = end;
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// One past the word or number at `start`; a number goes on past its point and its exponent's sign.
fn word_end(chars: &[char], start: usize) -> usize {
    let number = chars[start].is_ascii_digit();
    let hexadecimal = number && matches!(chars.get(start + 1), Some('x' | 'X'));
    let mut at = start;
    while let Some(&c) = chars.get(at) {
        let sign = number && !hexadecimal && at > start && matches!(c, '+' | '-') && matches!(chars[at - 1], 'e' | 'E');
        if !(is_word(c) || (number && c == '.') || sign) {
            break;
        }
        at += 1;
    }
    at
}

fn string_end(chars: &[char], start: usize) -> Option<usize> {
    let end = (start + 1..chars.len()).find(|&i| matches!(chars[i], '"' | '\n'))?;
    (chars[end] == '"').then_some(end + 1)
}

/// The index of the bracket that closes the one at `open`.
pub fn matching(tokens: &[Token], open: usize) -> Result<usize, String> {
    let opening = tokens[open].text.as_str();
    let closing = match opening {
        "(" => ")",
        "{" => "}",
        "<" => ">",
        other => unreachable!("`{other}` opens nothing"),
    };
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is(opening) {
            depth += 1;
        } else if token.is(closing) {
            depth -= 1;
            if depth == 0 {
                return Ok(at);
            }
        }
    }
    Err(tokens[open].place.fault(&format!("`{opening}` is never closed")))
}

/// The parts between the commas that are in no bracket.
pub fn split(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "[[" | "<" => depth += 1,
            ")" | "]" | "]]" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < tokens.len() {
        parts.push(&tokens[start..]);
    }
    parts
}

/// The tokens with one space between them, as C++ and CUDA write them: without address spaces.
pub fn plain(tokens: &[Token]) -> String {
    let words: Vec<&str> = tokens.iter().map(|token| without_space(&token.text)).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Address spaces are checked by the readers that know them; C++ and CUDA do without the words.
pub fn without_space(word: &str) -> &str {
    match word {
        "device" | "threadgroup" | "thread" => "",
        "constant" => "const",
        other => other,
    }
}
