//! A checkpoint's chat template: Jinja as Python's transformers runs it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use crate::TextError;
use crate::python::{self, JsonStyle};

const NAME: &str = "chat";

pub(crate) struct Template {
    environment: Environment<'static>,
}

impl Template {
    pub fn new(source: &str) -> Result<Template, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(template_error)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_template_owned(NAME, source.to_owned()).map_err(template_error)?;
        Ok(Template { environment })
    }

    pub fn render(&self, context: &Json) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME).map_err(template_error)?;
        template.render(Serde(context)).map_err(template_error)
    }
}

fn template_error(error: Error) -> TextError {
    let place = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    let problem = if error.kind() == ErrorKind::InvalidOperation && !detail.is_empty() { detail.to_owned() } else { error.to_string() };
    TextError::Template(format!("{problem}{place}"))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps` as transformers hands it to templates: Python's separators, no HTML escaping.
fn tojson(value: Serde<Json>, positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    if !positional.is_empty() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes its options by name"));
    }
    let mut style = JsonStyle::default();
    if let Some(width) = options.get::<Option<usize>>("indent")? {
        style.indent = Some(width);
        style.item_separator = ",".into();
    }
    if let Some((item, key)) = options.get::<Option<Vec<String>>>("separators")?.and_then(pair) {
        style.item_separator = item;
        style.key_separator = key;
    }
    style.ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    Ok(Value::from_safe_string(python::json(&value.0, &style)))
}

fn pair(separators: Vec<String>) -> Option<(String, String)> {
    let [item, key]: [String; 2] = separators.try_into().ok()?;
    Some((item, key))
}
