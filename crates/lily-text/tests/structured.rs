//! Structured output: whatever a model would like to say, what it may say fits the grammar.

mod support;

use lily_text::{Answer, ConstraintOptions, Grammar, OutputConstraint, OutputOptions, TextError, Tool};
use serde_json::{Value, json};
use support::{Dice, nano, script, tokenize, weather, write_file};

fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

fn constraint(grammar: Grammar) -> OutputConstraint {
    nano().constraint(&ConstraintOptions { grammar: Some(grammar), ..Default::default() }).expect("it compiles")
}

/// Whether the tokens of a text pass one by one and the answer may end after them.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    [1, 16].iter().all(|longest| {
        let mut constraint = constraint(grammar.clone());
        let tokens = tokenize(&script(text), *longest, None);
        let all = tokens.iter().all(|token| {
            let allowed = constraint.mask().is_none_or(|mask| allows(&mask, *token));
            if allowed {
                constraint.accept(*token);
            }
            allowed
        });
        let im_end = nano().special().im_end;
        all && constraint.is_complete() && constraint.mask().is_some_and(|mask| allows(&mask, im_end))
    })
}

/// Lets a model that has no idea what it says choose among the allowed tokens.
fn babble(constraint: &mut OutputConstraint, dice: &mut Dice, limit: usize) -> Vec<u32> {
    let eos = nano().eos();
    let mut tokens = Vec::new();
    while tokens.len() < limit {
        let token = constraint.forced().unwrap_or_else(|| {
            let mask = constraint.mask().unwrap_or_else(|| vec![u32::MAX; nano().vocab().div_ceil(32)]);
            let allowed: Vec<u32> = (0..nano().vocab() as u32).filter(|token| allows(&mask, *token)).collect();
            assert!(!allowed.is_empty(), "some token is always allowed");
            // Short tokens and the end are likelier than chance has it, so that answers end.
            match allowed.iter().find(|token| eos.contains(token)) {
                Some(end) if dice.below(3) == 0 => *end,
                _ => allowed[dice.below(allowed.len())],
            }
        });
        constraint.accept(token);
        if eos.contains(&token) {
            return tokens;
        }
        tokens.push(token);
    }
    tokens
}

#[test]
fn json_by_schema() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" }, "tags": { "type": "array", "items": { "type": "string" } } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let grammar = Grammar::JsonSchema(schema);
    assert!(accepts(&grammar, "{\"name\": \"Ann\", \"age\": 7}"));
    assert!(accepts(&grammar, "{\"name\": \"Ж \\\"q\\\" </think>\", \"age\": 7, \"tags\": [\"a\"]}".replace("</think>", "").as_str()));
    for wrong in [
        "\n{\"name\": \"Ann\", \"age\": 7}",
        "{\"age\": 7}",
        "{\n\"name\": \"Ann\", \"age\": 7}",
        "{\"name\":  \"Ann\", \"age\": 7}",
        "{\"name\": \"Ann\", \"age\": \"7\"}",
        "Sure: {",
        "{}",
        "{\"name\": \"Ann\", \"age\": 7",
    ] {
        assert!(!accepts(&grammar, wrong), "{wrong}");
    }
    assert!(accepts(&Grammar::JsonObject, "{\"any\": [1, null]}"));
    assert!(!accepts(&Grammar::JsonObject, "[1]"));
}

#[test]
fn other_grammars() {
    let regex = Grammar::Regex("[0-9]{4}-[0-9]{2}".into());
    assert!(accepts(&regex, "2026-01") && !accepts(&regex, "2026-1") && !accepts(&regex, "x"));
    let choice = Grammar::Choice(vec!["yes".into(), "no \"thanks\"".into()]);
    assert!(accepts(&choice, "yes") && accepts(&choice, "no \"thanks\"") && !accepts(&choice, "maybe"));
    let lark = Grammar::Lark("start: \"a\" (\"b\" | \"c\")+".into());
    assert!(accepts(&lark, "abcb") && !accepts(&lark, "a"));
}

#[test]
fn broken_grammars_are_refused() {
    let broken = [
        Grammar::Regex("(".into()),
        Grammar::Lark("start: missing".into()),
        Grammar::Lark(String::new()),
        Grammar::JsonSchema(json!({"type": "banana"})),
        Grammar::JsonSchema(json!("text")),
        Grammar::JsonSchema(json!({"$ref": "#/$defs/missing"})),
        Grammar::Choice(Vec::new()),
        Grammar::ToolCalls { tools: Vec::new(), parallel: false },
    ];
    for grammar in broken {
        let options = ConstraintOptions { grammar: Some(grammar.clone()), ..Default::default() };
        assert!(matches!(nano().constraint(&options), Err(TextError::Grammar(_))), "{grammar:?}");
    }
}

/// Thinking is free but cannot end the answer; then two line breaks come, then the grammar.
#[test]
fn the_grammar_begins_after_thinking() {
    let special = nano().special();
    let options = ConstraintOptions { in_thinking: true, grammar: Some(Grammar::JsonObject), ..Default::default() };
    let mut constraint = nano().constraint(&options).expect("it compiles");
    for token in nano().encode("Any words at all {").expect("it encodes") {
        assert!(allows(&constraint.mask().expect("a mask"), token));
        constraint.accept(token);
    }
    assert!(nano().eos().iter().all(|end| !allows(&constraint.mask().expect("a mask"), *end)));
    assert!(!constraint.is_complete());
    constraint.accept(special.think_end.expect("a tag"));
    let mut after = String::new();
    while let Some(token) = constraint.forced() {
        assert_eq!(constraint.mask().expect("a mask").iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        after.push_str(&nano().decode(&[token]).expect("it decodes"));
        constraint.accept(token);
    }
    assert_eq!(after, "\n\n");
    let mask = constraint.mask().expect("a mask");
    let open = nano().encode("{").expect("it encodes")[0];
    let word = nano().encode("word").expect("it encodes")[0];
    assert!(allows(&mask, open) && !allows(&mask, word));
}

#[test]
fn a_budget_closes_the_thinking() {
    let options = ConstraintOptions { in_thinking: true, thinking_budget: Some(3), grammar: None };
    let mut constraint = nano().constraint(&options).expect("no grammar");
    let mut tokens = nano().encode("one two three four five").expect("it encodes");
    tokens.truncate(3);
    for token in &tokens {
        assert_eq!((constraint.forced(), constraint.mask()), (None, None));
        constraint.accept(*token);
    }
    while let Some(token) = constraint.forced() {
        tokens.push(token);
        constraint.accept(token);
    }
    assert!(nano().decode(&tokens).expect("it decodes").ends_with("\n</think>\n\n"));
    assert_eq!(constraint.mask(), None, "after the block the model is free");
    // Where a line has just ended, no second line break is written: the format has one.
    let mut constraint = nano().constraint(&ConstraintOptions { thinking_budget: Some(4), ..options.clone() }).expect("no grammar");
    let mut tokens = nano().encode("one two\n").expect("it encodes");
    let more = 4 - tokens.len();
    tokens.splice(..0, nano().encode("one").expect("it encodes").into_iter().cycle().take(more));
    tokens.iter().for_each(|token| constraint.accept(*token));
    while let Some(token) = constraint.forced() {
        tokens.push(token);
        constraint.accept(token);
    }
    assert!(nano().decode(&tokens).expect("it decodes").ends_with(" two\n</think>\n\n"));
    // A block that ends in time is left alone.
    let mut constraint = nano().constraint(&options).expect("no grammar");
    constraint.accept(nano().special().think_end.expect("a tag"));
    assert_eq!((constraint.forced(), constraint.mask()), (None, None));
}

#[test]
fn babble_fits_the_schema() {
    let schema = json!({
        "type": "object",
        "properties": { "kind": { "enum": ["a", "b"] }, "n": { "type": "integer", "minimum": 0, "maximum": 99 }, "ok": { "type": "boolean" } },
        "required": ["kind", "n", "ok"],
        "additionalProperties": false,
    });
    let mut dice = Dice::new(21);
    for _ in 0..10 {
        let mut constraint = constraint(Grammar::JsonSchema(schema.clone()));
        let tokens = babble(&mut constraint, &mut dice, 200);
        let text = nano().decode(&tokens).expect("it decodes");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert!(["a", "b"].contains(&value["kind"].as_str().expect("a text")), "{value}");
        assert!(value["n"].as_u64().is_some_and(|n| n < 100) && value["ok"].is_boolean(), "{value}");
        assert_eq!(constraint.failure(), None);
    }
}

/// A forced call, chosen at random inside its grammar, is a call that the parser understands.
#[test]
fn forced_tool_calls_parse() {
    let strict: Tool = support::tool(
        "set_alarm",
        json!({
            "type": "object",
            "properties": {
                "hour": { "type": "integer", "minimum": 0, "maximum": 23 },
                "sound": { "enum": ["bell", "bird"] },
                "loud": { "type": "boolean" },
            },
            "required": ["hour", "sound"],
        }),
    );
    let mut dice = Dice::new(22);
    for parallel in [false, true] {
        for _ in 0..6 {
            let mut constraint = constraint(Grammar::ToolCalls { tools: vec![strict.clone()], parallel });
            let tokens = babble(&mut constraint, &mut dice, 400);
            let options = OutputOptions { tools: vec![strict.clone()], ..Default::default() };
            let answer: Answer = support::folded(&tokens, &options);
            assert_eq!(answer.content, "");
            assert!(!answer.tool_calls.is_empty() && (parallel || answer.tool_calls.len() == 1));
            for call in answer.tool_calls {
                let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
                assert_eq!(call.name, "set_alarm");
                assert!(arguments["hour"].as_u64().is_some_and(|hour| hour < 24), "{arguments}");
                assert!(["bell", "bird"].contains(&arguments["sound"].as_str().expect("a text")), "{arguments}");
            }
        }
    }
    let both = Grammar::ToolCalls { tools: vec![weather(), write_file()], parallel: false };
    let call = "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\nx < y\n</div>\n</parameter>\n</function>\n</tool_call>";
    assert!(accepts(&both, call));
    let call = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    assert!(accepts(&both, call));
    assert!(!accepts(&both, &call.replace('3', "three")));
    assert!(!accepts(&both, "Let me see."));
    assert!(!accepts(&both, &call.replace("get_weather", "other")));
}

/// An agent with a form for its last answer: calls on the way, JSON at the end, nothing else.
#[test]
fn calls_or_json() {
    let schema =
        json!({"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"], "additionalProperties": false});
    let either = Grammar::ToolCallsOrJson { tools: vec![weather()], parallel: true, schema };
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
    assert!(accepts(&either, call));
    assert!(accepts(&either, &format!("{call}\n{call}")));
    assert!(accepts(&either, "{\"done\": true}"));
    for wrong in ["{\"done\": 1}", "Paris", &format!("{call}\n{{\"done\": true}}"), "«<tool_call>»"] {
        assert!(!accepts(&either, wrong), "{wrong}");
    }
}

/// A strict tool whose calls nobody has asked for: the model says what it likes, and a call that it makes fits the schema.
#[test]
fn strict_calls_amid_text() {
    let strict = |mut tool: Tool| {
        tool.source["function"]["strict"] = json!(true);
        tool
    };
    let grammar = Grammar::TextAndToolCalls { tools: vec![strict(weather()), write_file()] };
    let call = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    for fits in [
        "",
        "It is raining: 3 < 4, <div>, \n\nЖ.",
        call,
        &format!("Let me see.\n\n{call}"),
        &format!("Two.\n{call}\n{call}\nDone."),
        "<tool_call>\n<function=write_file>\n<parameter=anything>\nx\n</parameter>\n</function>\n</tool_call>",
    ] {
        assert!(accepts(&grammar, fits), "{fits}");
    }
    for wrong in [&call.replace('3', "three"), &call.replace("days", "hours"), &call.replace("get_weather", "other"), "<tool_call>\nwords"]
    {
        assert!(!accepts(&grammar, wrong), "{wrong}");
    }
    // Not strict: only the call's shape counts.
    assert!(accepts(&Grammar::TextAndToolCalls { tools: vec![weather()] }, &call.replace('3', "three")));
}
