//! Scripts of model output, cut into tokens in many ways.
//!
//! In a script, `<think>`, `</think>`, `<tool_call>` and `</tool_call>` are the tokens of that name; inside
//! «guillemets» everything is ordinary text, tags too.
#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::OnceLock;

use lily_text::{Answer, OutputEvent, OutputOptions, Text, Tool};
use serde_json::{Value, json};

pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-nano");

pub fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{MODEL}/{name}")).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The bundled model's text side.
pub fn nano() -> &'static Text {
    static TEXT: OnceLock<Text> = OnceLock::new();
    TEXT.get_or_init(|| {
        let template = String::from_utf8(read("chat_template.jinja")).expect("the template is UTF-8");
        Text::load(&read("tokenizer.json"), Some(&read("tokenizer_config.json")), None, Some(&template), &[], 6144).expect("it loads")
    })
}

/// Numbers that look random and are the same in every run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// One piece of a script.
#[derive(Clone, Debug)]
pub enum Piece {
    Tag(u32),
    Bytes(Vec<u8>),
}

pub fn script(text: &str) -> Vec<Piece> {
    let special = nano().special();
    let tags = [
        ("<think>", special.think),
        ("</think>", special.think_end),
        ("<tool_call>", special.tool_call),
        ("</tool_call>", special.tool_call_end),
    ];
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    let mut quoted = false;
    while let Some(letter) = rest.chars().next() {
        if matches!(letter, '«' | '»') {
            quoted = letter == '«';
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        let tag = tags.iter().find(|(spelling, _)| !quoted && rest.starts_with(spelling));
        if let Some((spelling, id)) = tag {
            pieces.push(Piece::Bytes(std::mem::take(&mut plain).into_bytes()));
            pieces.push(Piece::Tag(id.expect("the tokenizer has all tags")));
            rest = &rest[spelling.len()..];
            continue;
        }
        plain.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    pieces.push(Piece::Bytes(plain.into_bytes()));
    pieces
}

/// Ordinary tokens by their bytes.
fn tokens_by_bytes() -> &'static HashMap<Vec<u8>, u32> {
    static TOKENS: OnceLock<HashMap<Vec<u8>, u32>> = OnceLock::new();
    TOKENS.get_or_init(|| {
        let text = nano();
        let first_added = text.special().end_of_text.expect("the first added token");
        (0..first_added).map(|id| (text.token_bytes(id).expect("in the vocabulary").to_vec(), id)).collect()
    })
}

/// Cuts a script into tokens of at most `longest` bytes, at random places where `dice` are given.
pub fn tokenize(pieces: &[Piece], longest: usize, mut dice: Option<&mut Dice>) -> Vec<u32> {
    let known = tokens_by_bytes();
    let mut tokens = Vec::new();
    for piece in pieces {
        let mut rest = match piece {
            Piece::Tag(id) => {
                tokens.push(*id);
                continue;
            }
            Piece::Bytes(bytes) => bytes.as_slice(),
        };
        while !rest.is_empty() {
            let limit = longest.min(rest.len());
            let wished = dice.as_mut().map_or(limit, |dice| 1 + dice.below(limit));
            let length = (1..=wished).rev().find(|length| known.contains_key(&rest[..*length])).expect("every byte is a token");
            tokens.push(known[&rest[..length]]);
            rest = &rest[length..];
        }
    }
    tokens
}

pub fn events(tokens: &[u32], options: OutputOptions) -> Vec<OutputEvent> {
    let mut parser = nano().output_parser(options);
    let mut events = Vec::new();
    for token in tokens {
        parser.push(*token, &mut events);
    }
    parser.finish(&mut events);
    events
}

/// The answer to a script, which must be the same however its text is cut into tokens. Call ids, which are
/// always new, are left out.
pub fn answer(text: &str, options: &OutputOptions) -> Answer {
    answer_of(&script(text), options, text)
}

pub fn answer_of(pieces: &[Piece], options: &OutputOptions, name: &str) -> Answer {
    let mut dice = Dice::new(7);
    let by_byte = folded(&tokenize(pieces, 1, None), options);
    for round in 0..8 {
        let tokens = match round {
            0 => tokenize(pieces, 16, None),
            _ => tokenize(pieces, 2 + round * 2, Some(&mut dice)),
        };
        assert_eq!(folded(&tokens, options), by_byte, "the answer depends on how {name:?} is cut, round {round}");
    }
    by_byte
}

pub fn folded(tokens: &[u32], options: &OutputOptions) -> Answer {
    let events = events(tokens, options.clone());
    check_order(&events);
    let mut answer: Answer = events.into_iter().collect();
    answer.tool_calls.iter_mut().for_each(|call| call.id.clear());
    answer
}

/// What every client may rely on, whatever the model says.
fn check_order(events: &[OutputEvent]) {
    let mut calls = 0;
    let mut ids = std::collections::HashSet::new();
    for (position, event) in events.iter().enumerate() {
        match event {
            OutputEvent::Reasoning(text) | OutputEvent::Content(text) => assert!(!text.is_empty(), "an empty delta"),
            OutputEvent::ToolCallStart { index, id, name } => {
                assert_eq!(*index, calls, "calls are numbered in order");
                assert!(id.starts_with("call_") && !name.is_empty());
                assert!(ids.insert(id.clone()), "ids are unique");
                calls += 1;
            }
            OutputEvent::ToolCallArguments { index, json } => {
                assert_eq!(*index + 1, calls, "arguments belong to the call that was begun last");
                assert!(!json.is_empty(), "an empty delta");
            }
            OutputEvent::StopMatched { .. } => assert_eq!(position + 1, events.len(), "nothing follows a stop"),
        }
    }
    let answer: Answer = events.iter().cloned().collect();
    for call in &answer.tool_calls {
        let arguments: Result<Value, _> = serde_json::from_str(&call.arguments);
        assert!(matches!(arguments, Ok(Value::Object(_))), "arguments are a JSON object: {}", call.arguments);
    }
}

pub fn tool(name: &str, parameters: Value) -> Tool {
    let source = json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    Tool { name: name.into(), description: None, parameters: Some(parameters), source }
}

pub fn weather() -> Tool {
    tool(
        "get_weather",
        json!({
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "zip_code": { "type": "string" },
                "days": { "type": "integer" },
                "metric": { "type": "boolean" },
                "limit": { "type": "number" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "place": { "type": "object" },
                "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "since": { "type": ["integer", "null"] },
                "mode": { "$ref": "#/$defs/Mode" },
                "any": {},
            },
            "$defs": { "Mode": { "enum": [1, 2, "auto"] } },
        }),
    )
}

pub fn write_file() -> Tool {
    let properties = json!({ "path": { "type": "string" }, "text": { "type": "string" }, "mode": { "type": "integer" } });
    tool("write_file", json!({ "type": "object", "properties": properties }))
}

pub fn with_tools() -> OutputOptions {
    OutputOptions { in_thinking: false, tools: vec![weather(), write_file()], stop: Vec::new() }
}
