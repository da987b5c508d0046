//! The form that an answer must have: `response_format`, and the `guided_…` fields of other servers.

use lily_engine::Constraint;
use lily_text::{ConstraintOptions, Grammar, OutputConstraint, Text, Tool};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, mismatch};

/// The names of the fields that [`read`] knows.
pub(crate) const FIELDS: &[&str] =
    &["guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "response_format", "structured_outputs"];

/// A grammar, and the field that asked for it.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub path: String,
    pub grammar: Grammar,
}

impl Form {
    /// The same, or calls of these tools instead. Forms that are no JSON stay as they are: whoever sends a
    /// pattern wants text that matches it.
    pub fn or_calls(&self, tools: Vec<Tool>, parallel: bool) -> Form {
        let schema = match &self.grammar {
            Grammar::JsonSchema(schema) => schema.clone(),
            Grammar::JsonObject => json!({"type": "object"}),
            _ => return self.clone(),
        };
        Form { path: self.path.clone(), grammar: Grammar::ToolCallsOrJson { tools, parallel, schema } }
    }
}

/// Reads every spelling; at most one may be used.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Option<Form>, ApiError> {
    let mut forms = Vec::new();
    forms.extend(response_format(fields, "response_format")?);
    forms.extend(by_kind(fields, "guided_")?);
    let path = fields.at("structured_outputs");
    if let Some(map) = fields.map("structured_outputs")? {
        forms.extend(by_kind(&Fields::new(&path, map), "")?);
    }
    if let Some(map) = fields.map("json_schema")? {
        forms.push(Form { path: fields.at("json_schema"), grammar: Grammar::JsonSchema(Value::Object(map.clone())) });
    }
    match forms.as_slice() {
        [first, second, ..] => {
            Err(ApiError::field(&second.path, format!("asks for one form and {} for another: send one of them", first.path)))
        }
        _ => Ok(forms.pop()),
    }
}

/// OpenAI's object: `response_format`, or `format` inside `text` of the Responses API.
pub(crate) fn response_format(fields: &Fields<'_>, name: &str) -> Result<Option<Form>, ApiError> {
    let path = fields.at(name);
    let Some(map) = fields.map(name)? else { return Ok(None) };
    let format = Fields::new(&path, map);
    let grammar = match format.string("type")? {
        None | Some("text") => return Ok(None),
        // llama.cpp's clients put a schema here, too.
        Some("json_object") => match format.get("schema") {
            Some(schema) => Grammar::JsonSchema(schema.clone()),
            None => Grammar::JsonObject,
        },
        Some("json_schema") => Grammar::JsonSchema(schema(&format)?),
        Some("regex") => Grammar::Regex(required(&format, "pattern")?),
        Some("grammar") => Grammar::Lark(required(&format, "grammar")?),
        Some(other) => {
            let message = format!("expected text, json_object, json_schema, regex or grammar, found the string {other:?}");
            return Err(ApiError::field(format.at("type"), message));
        }
    };
    Ok(Some(Form { path, grammar }))
}

/// `json_schema.schema`, or `schema` beside the type as the Responses API has it. No schema: any object.
fn schema(format: &Fields<'_>) -> Result<Value, ApiError> {
    let inner_path = format.at("json_schema");
    let inner = format.map("json_schema")?.map(|map| Fields::new(&inner_path, map)).unwrap_or(*format);
    match inner.get("schema") {
        None => Ok(json!({"type": "object"})),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema.clone()),
        Some(other) => Err(ApiError::field(inner.at("schema"), mismatch("a JSON schema", other))),
    }
}

fn required(fields: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    fields.required(name)?;
    Ok(fields.string(name)?.unwrap_or_default().to_owned())
}

/// vLLM's four: `json`, `regex`, `choice` and `grammar`, each behind `prefix`.
fn by_kind(fields: &Fields<'_>, prefix: &str) -> Result<Vec<Form>, ApiError> {
    let name = |kind: &str| format!("{prefix}{kind}");
    let mut forms = Vec::new();
    let mut add = |kind: &str, grammar| forms.push(Form { path: fields.at(&name(kind)), grammar });
    match fields.get(&name("json")) {
        None => {}
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(schema) => add("json", Grammar::JsonSchema(schema)),
            Err(error) => return Err(ApiError::field(fields.at(&name("json")), format!("the schema is not valid JSON: {error}"))),
        },
        Some(schema) => add("json", Grammar::JsonSchema(schema.clone())),
    }
    if let Some(pattern) = fields.string(&name("regex"))? {
        add("regex", Grammar::Regex(pattern.to_owned()));
    }
    if let Some(grammar) = fields.string(&name("grammar"))? {
        add("grammar", Grammar::Lark(grammar.to_owned()));
    }
    if let Some(items) = fields.array(&name("choice"))? {
        let path = fields.at(&name("choice"));
        let read = |(at, item): (usize, &Value)| match item.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(ApiError::field(format!("{path}[{at}]"), mismatch("a string", item))),
        };
        add("choice", Grammar::Choice(items.iter().enumerate().map(read).collect::<Result<_, _>>()?));
    }
    Ok(forms)
}

/// One constraint per choice; none where nothing is asked. Compiling a schema takes a while: call it off the
/// runtime's threads.
pub(crate) fn constraints(
    text: &Text,
    form: Option<Form>,
    in_thinking: bool,
    thinking_budget: Option<usize>,
    choices: usize,
) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
    let thinking_budget = thinking_budget.filter(|_| in_thinking);
    if form.is_none() && thinking_budget.is_none() {
        return Ok(Vec::new());
    }
    let (path, grammar) = form.map(|form| (form.path, form.grammar)).unzip();
    let options = ConstraintOptions { in_thinking, thinking_budget, grammar };
    let make = || match text.constraint(&options) {
        Ok(constraint) => Ok(Box::new(Held(constraint)) as Box<dyn Constraint>),
        Err(error) => Err(ApiError { code: Some("invalid_grammar"), ..ApiError::field(path.clone().unwrap_or_default(), error) }),
    };
    (0..choices).map(|_| make()).collect()
}

/// Text's constraint as the engine asks for it.
struct Held(OutputConstraint);

impl Constraint for Held {
    fn allowed(&mut self) -> Option<Vec<u32>> {
        self.0.mask()
    }

    fn accept(&mut self, token: u32) {
        self.0.accept(token);
    }

    fn forced(&mut self) -> Option<u32> {
        self.0.forced()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(failure) = self.0.failure() {
            tracing::warn!(failure, "an answer left its form and was ended early");
        }
    }
}
