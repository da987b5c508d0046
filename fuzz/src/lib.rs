//! The fuzz targets, one module each with its `run`, and what they share: the bundled model's text side.
//!
//! `fuzz_targets/` hands them to the fuzzer; README.md tells how. The ordinary tests include this file and replay the
//! kept inputs (`crates/lily/tests/fuzz_seeds.rs`).

pub mod cache_files;
pub mod output_parser;
pub mod request_json;
pub mod safetensors_header;
pub mod tool_arguments;

use std::path::PathBuf;
use std::sync::OnceLock;

use lily_model::ModelConfig;
use lily_text::{Text, Tool};
use serde_json::{Value, json};

/// The bundled model's folder, from whichever package this is compiled in.
pub fn model_folder() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = package.ancestors().map(|folder| folder.join("models/lily-nano")).find(|folder| folder.is_dir());
    folder.expect("the bundled model lies beside fuzz/")
}

pub fn model_file(name: &str) -> Vec<u8> {
    let path = model_folder().join(name);
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
