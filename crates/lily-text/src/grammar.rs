//! What an answer must look like: JSON by a schema, a regular expression, a grammar, or a tool call.

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::schema::{Parameters, Types};
use crate::vocabulary::SpecialIds;
use crate::{TextError, Tool};

/// The form that the content of an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that a schema allows.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// The whole content matches; Rust's regex syntax.
    Regex(String),
    /// llguidance's Lark dialect; the rule `start` is the content.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of these tools and nothing else; one call unless `parallel`.
    ToolCalls { tools: Vec<Tool>, parallel: bool },
    /// Either such calls, or JSON that the schema allows: an agent's turns and its last one.
    ToolCallsOrJson { tools: Vec<Tool>, parallel: bool, schema: Value },
    /// Any text with calls in it, if the model makes some: those of strict tools fit their schemas.
    TextAndToolCalls { tools: Vec<Tool> },
}

impl Grammar {
    pub(crate) fn compile(&self, special: &SpecialIds) -> Result<TopLevelGrammar, TextError> {
        Ok(match self {
            Grammar::JsonSchema(schema) if !schema.is_object() && !schema.is_boolean() => {
                return Err(TextError::Grammar(format!("a JSON schema is an object or a boolean, found {schema}")));
            }
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(one_line(schema.clone())),
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(one_line(json!({ "type": "object" }))),
            Grammar::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Grammar::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Grammar::Choice(texts) if texts.is_empty() => return Err(TextError::Grammar("a choice of no texts".into())),
            Grammar::Choice(texts) => TopLevelGrammar::from_lark(format!("start: {}", one_of(texts))),
            Grammar::ToolCalls { tools, .. } | Grammar::ToolCallsOrJson { tools, .. } | Grammar::TextAndToolCalls { tools }
                if tools.is_empty() =>
            {
                return Err(TextError::Grammar("a call of no tools".into()));
            }
            Grammar::TextAndToolCalls { tools } => {
                let calls = tool_calls(tools, false, special, Tool::is_strict)?;
                TopLevelGrammar::from_lark(format!("start: (words call)* words\nwords: /(?s:.*)/\n{calls}"))
            }
            Grammar::ToolCalls { tools, parallel } => {
                TopLevelGrammar::from_lark(format!("start: calls\n{}", tool_calls(tools, *parallel, special, |_| true)?))
            }
            Grammar::ToolCallsOrJson { tools, parallel, schema } => {
                let calls = tool_calls(tools, *parallel, special, |_| true)?;
                TopLevelGrammar::from_lark(format!("start: calls | answer\nanswer: %json {}\n{calls}", one_line(schema.clone())))
            }
        })
    }
}

/// Free white space would let a small model write line breaks until its limit: JSON goes on one line, as
/// Python prints it.
fn one_line(mut schema: Value) -> Value {
    if schema.is_object() && schema.get("x-guidance").is_none() {
        let options = JsonCompileOptions {
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            whitespace_flexible: false,
            ..Default::default()
        };
        options.apply_to(&mut schema);
    }
    schema
}

/// The rules `calls` and `call`, the chat format's calls. Parameters of tools that are `held` to their schema come in its
/// order, the required ones all.
fn tool_calls(tools: &[Tool], parallel: bool, special: &SpecialIds, held: impl Fn(&Tool) -> bool) -> Result<String, TextError> {
    let (Some(begin), Some(end)) = (special.tool_call, special.tool_call_end) else {
        return Err(TextError::Grammar("the tokenizer has no <tool_call> tokens".into()));
    };
    let more = if parallel { r#"("\n" call)*"# } else { "" };
    let functions: Vec<String> = (0..tools.len()).map(|n| format!("tool{n}")).collect();
    let mut grammar = format!("calls: call {more}\ncall: <[{begin}]> \"\\n\" ({}) \"\\n\" <[{end}]>\n", functions.join(" | "));
    grammar.push_str("text[lazy]: /(?s:.*)/ \"\\n</parameter>\\n\"\n");
    for (n, tool) in tools.iter().enumerate() {
        grammar.push_str(&if held(tool) { function(n, tool) } else { free_function(n, tool) });
    }
    Ok(grammar)
}

const ANY_PARAMETERS: &str = r#"("<parameter=" /[^>\n]+/ ">\n" text)*"#;

/// A call with whatever parameters the model gives it.
fn free_function(n: usize, tool: &Tool) -> String {
    format!("tool{n}: {} {ANY_PARAMETERS} \"</function>\"\n", literal(&format!("<function={}>\n", tool.name)))
}

fn function(n: usize, tool: &Tool) -> String {
    let none = Value::Null;
    let root = tool.parameters.as_ref().unwrap_or(&none);
    let empty = Map::new();
    let properties = root.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = |name: &str| root["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
    let mut rule = format!("tool{n}: {}", literal(&format!("<function={}>\n", tool.name)));
    let mut rules = String::new();
    for (m, (name, schema)) in properties.iter().enumerate() {
        rule.push_str(&format!(" tool{n}_{m}{}", if required(name) { "" } else { "?" }));
        let opening = literal(&format!("<parameter={name}>\n"));
        rules.push_str(&format!("tool{n}_{m}: {opening} {}\n", value(root, name, schema)));
    }
    if properties.is_empty() && tool.parameters.is_none() {
        return free_function(n, tool);
    }
    format!("{rule} \"</function>\"\n{rules}")
}

/// A value and the tag that ends it. Text is free; what can only be JSON is held to its schema.
fn value(root: &Value, name: &str, schema: &Value) -> String {
    let listed = schema.get("enum").and_then(Value::as_array).filter(|values| values.iter().all(Value::is_string));
    if let Some(values) = listed {
        let texts: Vec<String> = values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return format!("{} \"\\n</parameter>\\n\"", one_of(&texts));
    }
    if Parameters::new(root).types_of(name).has(Types::STRING) {
        return "text".into();
    }
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(shared) = root.get(key) {
                fields.entry(key).or_insert_with(|| shared.clone());
            }
        }
    }
    format!("%json {} \"\\n</parameter>\\n\"", one_line(schema))
}

fn one_of(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
    format!("({})", texts.join(" | "))
}

/// A text as Lark writes it: JSON's escapes are Lark's.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
