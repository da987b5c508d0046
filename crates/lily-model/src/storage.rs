//! How the checkpoint stores the weights, as far as `config.json` says so: quantisation, tied embeddings.

use std::collections::HashMap;

use crate::error::ModelError;
use crate::fields::{Fields, parse};

/// What a loader must know beside the shape. What the model computes is in [`crate::ModelConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// `None` for a checkpoint of plain floats.
    pub quantization: Option<Quantization>,
    /// Whether the head uses the embedding's matrix.
    pub tied_head: bool,
}

impl Storage {
    /// Reads the text of `config.json`.
    pub fn from_json(text: &[u8]) -> Result<Self, ModelError> {
        let json = parse(text)?;
        let root = Fields::root(&json)?;
        let text_model = root.object("text_config")?;
        let tied = match text_model.map(|fields| fields.optional_flag("tie_word_embeddings")).transpose()?.flatten() {
            Some(tied) => tied,
            None => root.optional_flag("tie_word_embeddings")?.unwrap_or(false),
        };
        Ok(Storage { quantization: Quantization::from_fields(&root)?, tied_head: tied })
    }
}

/// Bits per code and consecutive inputs per scale of an affine matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    /// 4 or 8.
    pub bits: usize,
    /// 32, 64 or 128.
    pub group: usize,
}

/// Default and exceptions, by a matrix's name without the checkpoint's prefix (`layers.0.mlp.gate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    pub default: Affine,
    pub overrides: HashMap<String, Affine>,
}

impl Quantization {
    /// The section `quantization`, or its copy `quantization_config`.
    fn from_fields(root: &Fields<'_>) -> Result<Option<Self>, ModelError> {
        let Some(section) = root.object("quantization")?.or(root.object("quantization_config")?) else { return Ok(None) };
        if let Some(method) = section.get("quant_method") {
            return Err(section.unlike("quant_method", "no such field (the MLX affine format)", method));
        }
        let default = affine(&section, None)?;
        let mut overrides = HashMap::new();
        for name in section.iter().filter(|(_, value)| value.is_object()).map(|(name, _)| name).filter(|name| is_text(name)) {
            let Some(fields) = section.object(name)? else { continue };
            overrides.insert(plain_name(name).to_owned(), affine(&fields, Some(default))?);
        }
        Ok(Some(Quantization { default, overrides }))
    }

    /// The format of one matrix, by its name without prefix.
    pub fn of(&self, name: &str) -> Affine {
        self.overrides.get(name).copied().unwrap_or(self.default)
    }
}

/// The name of a module or tensor without the prefix that checkpoints of this architecture put before
/// it: `language_model.model.`, `model.language_model.`, `language_model.` or `model.`.
pub(crate) fn plain_name(name: &str) -> &str {
    let prefixes = ["language_model.model.", "model.language_model.", "language_model.", "model."];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Whether an override concerns the text model; vision and multi-token prediction are not computed.
fn is_text(name: &str) -> bool {
    !["vision_tower", "visual", "mtp"].iter().any(|part| plain_name(name).starts_with(part))
}

/// Bits and group of one section; an override takes what it leaves out from the default.
fn affine(fields: &Fields<'_>, default: Option<Affine>) -> Result<Affine, ModelError> {
    if let Some(mode) = fields.get("mode").filter(|&mode| mode != "affine") {
        return Err(fields.unlike("mode", "\"affine\"", mode));
    }
    let number = |name: &str, default: Option<usize>, allowed: &[usize], expected: &str| match fields.get(name) {
        Some(value) => {
            let found = value.as_u64().and_then(|found| allowed.iter().copied().find(|&one| one as u64 == found));
            found.ok_or_else(|| fields.unlike(name, expected, value))
        }
        None => default.ok_or_else(|| fields.missing(name, expected)),
    };
    Ok(Affine {
        bits: number("bits", default.map(|default| default.bits), &[4, 8], "4 or 8")?,
        group: number("group_size", default.map(|default| default.group), &[32, 64, 128], "32, 64 or 128")?,
    })
}
