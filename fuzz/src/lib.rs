//! What the fuzz targets share: the bundled model's text side. Each target is a file in `fuzz_targets/`;
//! README.md tells how they are run.

use std::path::Path;
use std::sync::OnceLock;

use lily_model::ModelConfig;
use lily_text::{Text, Tool};
use serde_json::{Value, json};

pub fn model_file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/lily-nano").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn config() -> ModelConfig {
    ModelConfig::from_json(&model_file("config.json")).expect("the bundled configuration")
}

pub fn load_text() -> Text {
    let template = String::from_utf8(model_file("chat_template.jinja")).expect("the template is text");
    let config = config();
    Text::load(&model_file("tokenizer.json"), None, None, Some(&template), &config.eos, config.vocab).expect("the bundled tokenizer")
}

pub fn text() -> &'static Text {
    static TEXT: OnceLock<Text> = OnceLock::new();
    TEXT.get_or_init(load_text)
}

pub fn tool(name: &str, properties: Value) -> Tool {
    let parameters = json!({"type": "object", "properties": properties});
    let source = json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    Tool { name: name.to_owned(), description: None, parameters: Some(parameters), source }
}
