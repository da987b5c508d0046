//! Whatever a model says: no panic, the same answer at every cut, arguments that are JSON objects, and no
//! replacement character that the bytes did not ask for.
//!
//! Input: a byte of switches, then text (spellings of tags are tags) or token ids of two bytes each.

use std::sync::OnceLock;

use lily_text::{Answer, OutputEvent, OutputOptions, Tool};
use serde_json::{Value, json};

use super::{text, tool};

fn tools() -> &'static [Tool] {
    static TOOLS: OnceLock<Vec<Tool>> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let scalar = json!({"city": {"type": "string"}, "days": {"type": "integer"}, "on": {"type": "boolean"}, "any": {}});
        let nested = json!({"list": {"type": "array"}, "place": {"type": "object"}, "note": {"type": ["string", "null"]}});
        vec![tool("f", scalar), tool("write", nested)]
    })
}

fn answer(tokens: &[u32], options: &OutputOptions) -> Answer {
    let mut parser = text().output_parser(options.clone());
    let mut events: Vec<OutputEvent> = Vec::new();
    tokens.iter().for_each(|&token| parser.push(token, &mut events));
    parser.finish(&mut events);
    let mut answer: Answer = events.into_iter().collect();
    answer.tool_calls.iter_mut().for_each(|call| call.id.clear());
    answer
}

pub fn run(data: &[u8]) {
    let Some((&switches, data)) = data.split_first() else { return };
    let options = OutputOptions {
        in_thinking: switches & 1 != 0,
        tools: if switches & 2 != 0 { tools().to_vec() } else { Vec::new() },
        stop: if switches & 4 != 0 { vec!["stop".to_owned(), "\n\nx".to_owned()] } else { Vec::new() },
    };
    let tokens: Vec<u32> = match switches & 8 {
        0 => text().encode(&String::from_utf8_lossy(data)).expect("any text has tokens"),
        _ => data.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) % (text().vocab() as u32 + 9)).collect(),
    };
    let whole = answer(&tokens, &options);
    for call in &whole.tool_calls {
        assert!(serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object()), "{}", call.arguments);
        assert!(!call.name.is_empty());
    }
    for bytes in [1, 3, 16] {
        assert_eq!(answer(&text().cut(&tokens, bytes), &options), whole, "cut at {bytes} bytes");
    }
    let said = text().decode(&tokens.iter().copied().filter(|&token| (token as usize) < text().vocab()).collect::<Vec<_>>());
    if !said.expect("known tokens").contains('\u{fffd}') {
        let shown = format!("{}{}{:?}", whole.reasoning, whole.content, whole.tool_calls);
        assert!(!shown.contains('\u{fffd}') || tokens.len() > said_runs(&tokens), "invented: {shown}");
    }
}

/// Tokens of the tokenizer's added ones cut characters apart: then a half character is no invention.
fn said_runs(tokens: &[u32]) -> usize {
    let special = text().special();
    let tags = [special.think, special.think_end, special.tool_call, special.tool_call_end];
    tokens.iter().filter(|&&token| !tags.contains(&Some(token))).count()
}
