//! How tokens are chosen and when to end: the fields that chat, completions and the other routes share.

use lily_engine::Sampling;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, as_integer, mismatch};

/// Stop texts that one request may have.
const STOPS_MAX: usize = 64;
/// Answers that one request may ask for.
const CHOICES_MAX: i64 = 16;
/// Alternatives per token, as in OpenAI's API.
pub(crate) const TOP_LOGPROBS_MAX: i64 = 20;

/// Reads every sampling field; what the request does not say stays at `defaults`.
pub(crate) fn sampling(fields: &Fields<'_>, defaults: &Sampling, vocab: usize) -> Result<Sampling, ApiError> {
    let mut sampling = defaults.clone();
    let set = |target: &mut f32, name: &str, min: f64, max: f64| {
        if let Some(number) = fields.number(name, min, max)? {
            *target = number as f32;
        }
        Ok::<_, ApiError>(())
    };
    set(&mut sampling.temperature, "temperature", 0.0, 2.0)?;
    set(&mut sampling.top_p, "top_p", 0.0, 1.0)?;
    set(&mut sampling.min_p, "min_p", 0.0, 1.0)?;
    set(&mut sampling.presence_penalty, "presence_penalty", -2.0, 2.0)?;
    set(&mut sampling.frequency_penalty, "frequency_penalty", -2.0, 2.0)?;
    // Two spellings are about: the papers' and llama.cpp's.
    for name in ["repeat_penalty", "repetition_penalty"] {
        set(&mut sampling.repetition_penalty, name, 0.01, 100.0)?;
    }
    if let Some(top_k) = fields.integer("top_k", -1, i64::MAX)? {
        sampling.top_k = top_k.max(0) as usize; // -1 and 0 both mean all
    }
    if let Some(seed) = fields.integer("seed", i64::MIN, i64::MAX)? {
        sampling.seed = (seed != -1).then_some(seed as u64); // -1 is how llama.cpp's clients say "draw one"
    }
    if let Some(bias) = logit_bias(fields, vocab)? {
        sampling.logit_bias = bias;
    }
    Ok(sampling)
}

/// `{"1234": -100}`: token ids as strings.
fn logit_bias(fields: &Fields<'_>, vocab: usize) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(None) };
    let path = fields.at("logit_bias");
    let entries = Fields::new(&path, map);
    let mut bias = Vec::with_capacity(map.len());
    for name in map.keys() {
        let token = name.parse::<u32>().ok().filter(|&token| (token as usize) < vocab);
        let token = token.ok_or_else(|| ApiError::field(&path, format!("expected token ids from 0 to {}, found {name:?}", vocab - 1)))?;
        if let Some(value) = entries.number(name, -100.0, 100.0)? {
            bias.push((token, value as f32));
        }
    }
    Ok(Some(bias))
}

/// The first of `names` that is given. `-1` is no limit, as several clients write it.
pub(crate) fn max_tokens(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let mut limit = None;
    for name in names {
        let given = fields.integer(name, -1, i64::MAX)?;
        if given == Some(0) {
            return Err(ApiError::field(fields.at(name), "expected an integer of at least 1, found 0"));
        }
        limit = limit.or(given);
    }
    Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
}

/// A string or an array of strings; empty ones, which would match everywhere, are no stop.
pub(crate) fn stop(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let path = fields.at(name);
    let texts: Vec<&str> = match fields.get(name) {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(items)) => {
            let mut texts = Vec::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                match item {
                    Value::Null => {}
                    Value::String(text) => texts.push(text.as_str()),
                    other => return Err(ApiError::field(format!("{path}[{at}]"), mismatch("a string", other))),
                }
            }
            texts
        }
        Some(other) => return Err(ApiError::field(path, mismatch("a string or an array of strings", other))),
    };
    if texts.len() > STOPS_MAX {
        return Err(ApiError::field(path, format!("expected at most {STOPS_MAX} texts, found {}", texts.len())));
    }
    Ok(texts.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect())
}

/// `n`: independent answers to one prompt.
pub(crate) fn choices(fields: &Fields<'_>) -> Result<usize, ApiError> {
    Ok(fields.integer("n", 1, CHOICES_MAX)?.unwrap_or(1) as usize)
}

/// `stream` and `stream_options.include_usage`.
pub(crate) fn streaming(fields: &Fields<'_>) -> Result<(bool, bool), ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let Some(map) = fields.map("stream_options")? else { return Ok((stream, false)) };
    let path = fields.at("stream_options");
    let include_usage = Fields::new(&path, map).bool("include_usage")?.unwrap_or(false);
    Ok((stream, include_usage))
}

/// Token ids of a prompt.
pub(crate) fn token_ids(path: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let read = |(at, item): (usize, &Value)| {
        let token = as_integer(item).and_then(|id| u32::try_from(id).ok());
        token.ok_or_else(|| ApiError::field(format!("{path}[{at}]"), mismatch("a token id", item)))
    };
    items.iter().enumerate().map(read).collect()
}
