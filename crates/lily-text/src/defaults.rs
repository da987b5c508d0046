//! What a checkpoint's small JSON files say about generation: sampling defaults, end tokens, the template.

use serde::Deserialize;
use serde_json::Value;

use crate::TextError;
use crate::vocabulary::Vocabulary;

/// Sampling as generation_config.json wishes it; absent fields are left to the server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SamplingDefaults {
    /// `false` means greedy.
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
}

/// The checkpoint's small JSON files, parsed; absent files are null.
pub(crate) struct ConfigFiles {
    tokenizer: Value,
    generation: Value,
}

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

impl ConfigFiles {
    pub fn parse(tokenizer: Option<&[u8]>, generation: Option<&[u8]>) -> Result<ConfigFiles, TextError> {
        Ok(ConfigFiles { tokenizer: object(TOKENIZER_CONFIG, tokenizer)?, generation: object(GENERATION_CONFIG, generation)? })
    }

    pub fn sampling(&self) -> Result<SamplingDefaults, TextError> {
        if self.generation.is_null() {
            return Ok(SamplingDefaults::default());
        }
        SamplingDefaults::deserialize(&self.generation).map_err(|error| TextError::file(GENERATION_CONFIG, error))
    }

    /// The ids that end an answer: the model's own, generation_config's, the tokenizer's. Ascending.
    pub fn end_tokens(&self, config_eos: &[u32], vocabulary: &Vocabulary) -> Result<Vec<u32>, TextError> {
        let mut ids = config_eos.to_vec();
        ids.extend(token_ids(&self.generation["eos_token_id"])?);
        if let Some(text) = token_text(&self.tokenizer["eos_token"]) {
            let id = vocabulary.id_of(text).ok_or_else(|| {
                TextError::Mismatch(format!("tokenizer_config.json ends answers with {text:?}, which tokenizer.json lacks"))
            })?;
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary.rows) {
            return Err(TextError::Mismatch(format!("end token {id} is past the model's {} embedding rows", vocabulary.rows)));
        }
        Ok(ids)
    }

    /// `chat_template`: one text, or a list of named ones of which `default` (else the first) is taken.
    pub fn chat_template(&self) -> Result<Option<&str>, TextError> {
        let wrong = || TextError::file(TOKENIZER_CONFIG, "chat_template: expected a string, or a list of {\"name\", \"template\"}");
        match &self.tokenizer["chat_template"] {
            Value::Null => Ok(None),
            Value::String(source) => Ok(Some(source)),
            Value::Array(named) => {
                let chosen = named.iter().find(|entry| entry["name"] == "default").or(named.first());
                chosen.map(|entry| entry["template"].as_str().ok_or_else(wrong)).transpose()
            }
            _ => Err(wrong()),
        }
    }
}

fn object(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, TextError> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    let value: Value = serde_json::from_slice(bytes).map_err(|error| TextError::file(file, error))?;
    if value.is_object() { Ok(value) } else { Err(TextError::file(file, "expected a JSON object")) }
}

fn token_ids(value: &Value) -> Result<Vec<u32>, TextError> {
    let one = |id: &Value| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| TextError::file(GENERATION_CONFIG, format!("eos_token_id: expected a token id or a list of them, found {value}")))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(one).collect(),
        id => Ok(vec![one(id)?]),
    }
}

/// A token in tokenizer_config.json is its text, or an object that holds it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}
