//! What is known of a checkpoint: greedy answers and their probabilities, from another engine.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// Of Qwen3.6-35B-A3B at 4 bits.
const BUILT_IN: &str = include_str!("qwen3_6_35b_a3b.json");

/// All that is known of one checkpoint.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// What the checkpoint is called.
    pub model: String,
    /// Which engine found it so.
    pub made_by: String,
    /// Number of layers, hidden size, experts, experts per token, vocabulary: what tells it from others.
    pub shape: [usize; 5],
    pub answers: Vec<AnswerFact>,
}

/// A prompt, and what greedy choice makes of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerFact {
    pub name: String,
    /// The prompt as it stands, ...
    pub raw: Option<String>,
    /// ... or a user's question, with thinking on.
    pub user: Option<String>,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The tokens after it.
    pub greedy: Vec<u32>,
    /// Log-probability of the first of them, in nats, if known.
    pub logprob: Option<f64>,
}

impl Facts {
    /// Those of a file, or the built-in ones.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let place = file.map_or("the built-in facts".into(), |file| format!("--acceptance {}", file.display()));
        let text = match file {
            Some(file) => std::fs::read_to_string(file).with_context(|| place.clone())?,
            None => BUILT_IN.into(),
        };
        let facts: Facts = serde_json::from_str(&text).with_context(|| place.clone())?;
        match facts
            .answers
            .iter()
            .find(|fact| fact.raw.is_some() == fact.user.is_some() || fact.prompt.is_empty() || fact.greedy.is_empty())
        {
            Some(fact) => bail!("{place}: {}: expected raw or user, and at least one token of prompt and greedy", fact.name),
            None => Ok(facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_model::ModelConfig;

    #[test]
    fn the_built_in_facts_are_of_the_full_model() {
        let facts = Facts::load(None).expect("they are valid");
        let config = ModelConfig::qwen3_6_35b_a3b();
        assert_eq!(facts.shape, [config.layers.len(), config.hidden, config.experts, config.experts_per_token, config.vocab]);
        assert_eq!(facts.answers.len(), 2);
        for fact in &facts.answers {
            assert_eq!(fact.greedy.len(), 20, "{}", fact.name);
            assert!(fact.prompt.iter().chain(&fact.greedy).all(|&token| (token as usize) < config.vocab), "{}", fact.name);
        }
    }
}
