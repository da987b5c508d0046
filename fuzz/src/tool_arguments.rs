//! One argument against one schema: the call survives, its arguments are one JSON object, and a string stays
//! what it was.
//!
//! Input: a JSON schema, a zero byte, the value as the model writes it.

use lily_text::{Answer, OutputEvent, OutputOptions};
use serde_json::{Value, json};

use super::{text, tool};

pub fn run(data: &[u8]) {
    let Some(at) = data.iter().position(|&byte| byte == 0) else { return };
    let Ok(schema) = serde_json::from_slice::<Value>(&data[..at]) else { return };
    let Ok(value) = std::str::from_utf8(&data[at + 1..]) else { return };
    let special = text().special();
    let mut tokens = vec![special.tool_call.expect("a tag")];
    // Encoded apart from the tags, so that a value may spell them.
    tokens.extend(text().encode("\n<function=f>\n<parameter=v>\n").expect("plain text"));
    tokens.extend(text().encode(value).expect("any text has tokens"));
    tokens.extend(text().encode("\n</parameter>\n</function>\n").expect("plain text"));
    tokens.extend(special.tool_call_end);

    let options = OutputOptions { tools: vec![tool("f", json!({"v": schema}))], ..OutputOptions::default() };
    let mut parser = text().output_parser(options);
    let mut events: Vec<OutputEvent> = Vec::new();
    tokens.iter().for_each(|&token| parser.push(token, &mut events));
    parser.finish(&mut events);
    let answer: Answer = events.into_iter().collect();
    let call = answer.tool_calls.first().expect("a call is never lost");
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|error| panic!("{error}: {}", call.arguments));
    let plain = !value.contains('<') && !value.contains('\u{fffd}');
    if plain {
        assert_eq!(arguments.as_object().map(|map| map.len()), Some(1), "{arguments}");
        if schema == json!({"type": "string"}) {
            assert_eq!(arguments["v"].as_str(), Some(value));
        }
    }
}
