//! Another engine's predictions, in a safetensors file that `tools/goldens/reference.py` writes.
//!
//! | tensor | type and shape | holds |
//! |---|---|---|
//! | `tokens` | I32 or I64 `[n]` | the text |
//! | `logprobs` | F32 `[n]` | log-probability, in nats, of the token after each position; 0 where a window ends |
//! | `top1` | I32 or I64 `[n]` | the most probable token after each position |
//! | `logits` | F32, F16 or BF16 `[m, vocab]` | everything that was predicted after the first `m` positions |
//!
//! All but `tokens` are optional. The metadata's `window` says after how many tokens the state is emptied, `made_by` who
//! computed it. Logits are read row by row: those of 192 positions of the full model are 95 MB in F16.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// A header that is longer than this is no header of ours.
const HEADER_MAX: u64 = 1 << 20;

/// An opened reference file.
pub struct Reference {
    path: PathBuf,
    file: File,
    pub tokens: Vec<u32>,
    /// Tokens after which the state was emptied.
    pub window: usize,
    pub made_by: String,
    pub logprobs: Option<Vec<f32>>,
    pub top1: Option<Vec<u32>>,
    logits: Option<Logits>,
}

/// Where the rows of logits are.
struct Logits {
    dtype: Dtype,
    start: u64,
    rows: usize,
    vocab: usize,
}

impl Reference {
    /// Reads all but the logits. `vocab`: of the model that is to be compared.
    pub fn open(path: &Path, vocab: usize) -> anyhow::Result<Self> {
        Self::read(path, vocab).with_context(|| format!("--reference {}", path.display()))
    }

    fn read(path: &Path, vocab: usize) -> anyhow::Result<Self> {
        let mut file = File::open(path)?;
        let (header, start) = header(&mut file)?;
        let (found, expected) = (file.metadata()?.len(), start + header.data_len() as u64);
        if found < expected {
            bail!("truncated: the tensors end at byte {expected}, the file has {found}");
        }
        let tensors = header.tensors();
        let info = |name: &str| tensors.get(name).copied();
        let Some(ids) = info("tokens") else { bail!("expected a tensor named tokens, which says what was predicted; found none") };
        let count = ids.shape.iter().product();
        let mut one = |name: &str, kinds: &[Dtype]| match info(name) {
            Some(info) => vector(&mut file, start, name, info, kinds, count).map(Some),
            None => Ok(None),
        };
        let integers = [Dtype::I32, Dtype::I64, Dtype::U32];
        let tokens = ids_below(vocab, "tokens", &one("tokens", &integers)?.unwrap_or_default())?;
        let top1 = one("top1", &integers)?.map(|ids| ids_below(vocab, "top1", &ids)).transpose()?;
        let logprobs = one("logprobs", &[Dtype::F32])?.map(|values| values.into_iter().map(|value| value as f32).collect());
        let logits = info("logits").map(|info| Logits::new(info, start, count, vocab)).transpose()?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let window = match metadata.get("window").map(|window| (window, window.parse())) {
            None => count,
            Some((_, Ok(window))) if window > 1 => window,
            Some((found, _)) => bail!("metadata window: expected a number of tokens above 1, found {found:?}"),
        };
        let made_by = metadata.get("made_by").cloned().unwrap_or_else(|| "an unnamed engine".into());
        Ok(Reference { path: path.to_owned(), file, tokens, window, made_by, logprobs, top1, logits })
    }

    /// Positions that have all their logits.
    pub fn logit_rows(&self) -> usize {
        self.logits.as_ref().map_or(0, |logits| logits.rows)
    }

    /// Fills `row` with the logits after a position; `false` where the file has none.
    pub fn logits(&mut self, position: usize, row: &mut Vec<f32>) -> anyhow::Result<bool> {
        let Some(logits) = self.logits.as_ref().filter(|logits| position < logits.rows) else { return Ok(false) };
        let size = bytes(logits.dtype);
        let mut raw = vec![0; logits.vocab * size];
        let at = logits.start + (position * raw.len()) as u64;
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut raw));
        read.with_context(|| format!("--reference {}: logits of position {position}", self.path.display()))?;
        row.clear();
        row.extend(raw.chunks_exact(size).map(|raw| number(logits.dtype, raw) as f32));
        if let Some(token) = row.iter().position(|logit| !logit.is_finite()) {
            bail!("--reference {}: logit of token {token} after position {position} is {}", self.path.display(), row[token]);
        }
        Ok(true)
    }
}

impl Logits {
    fn new(info: &TensorInfo, start: u64, count: usize, vocab: usize) -> anyhow::Result<Self> {
        if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            bail!("logits: expected F32, F16 or BF16, found {:?}", info.dtype);
        }
        let &[rows, found] = &info.shape[..] else { bail!("logits: expected [positions, {vocab}], found {:?}", info.shape) };
        if found != vocab {
            bail!("logits: expected [positions, {vocab}], the model's vocabulary; found {:?}, another model's", info.shape);
        }
        if rows > count {
            bail!("logits: expected rows for at most {count} tokens, found {rows}");
        }
        Ok(Logits { dtype: info.dtype, start: start + info.data_offsets.0 as u64, rows, vocab })
    }
}

/// The header, and where the data begin.
fn header(file: &mut File) -> anyhow::Result<(Metadata, u64)> {
    let mut length = [0; 8];
    file.read_exact(&mut length).context("expected a safetensors file, found less than eight bytes")?;
    let bytes = u64::from_le_bytes(length);
    if bytes > HEADER_MAX {
        bail!("expected a safetensors file, found a header of {bytes} bytes");
    }
    let mut text = vec![0; bytes as usize];
    file.read_exact(&mut text).with_context(|| format!("truncated: the header has {bytes} bytes"))?;
    Ok((serde_json::from_slice(&text).context("corrupt header")?, 8 + bytes))
}

/// A tensor of one dimension, exactly.
fn vector(file: &mut File, start: u64, name: &str, info: &TensorInfo, kinds: &[Dtype], count: usize) -> anyhow::Result<Vec<f64>> {
    if !kinds.contains(&info.dtype) {
        bail!("{name}: expected {kinds:?}, found {:?}", info.dtype);
    }
    if info.shape != [count] || count < 2 {
        bail!("{name}: expected [{}], one for each of at least two tokens; found {:?}", count.max(2), info.shape);
    }
    let size = bytes(info.dtype);
    let mut raw = vec![0; count * size];
    file.seek(SeekFrom::Start(start + info.data_offsets.0 as u64))?;
    file.read_exact(&mut raw).with_context(|| format!("truncated: {name}"))?;
    Ok(raw.chunks_exact(size).map(|raw| number(info.dtype, raw)).collect())
}

fn ids_below(vocab: usize, name: &str, values: &[f64]) -> anyhow::Result<Vec<u32>> {
    if let Some(at) = values.iter().position(|&id| !(0.0..vocab as f64).contains(&id)) {
        bail!("{name}[{at}]: expected an id below {vocab}, the model's vocabulary; found {}, another model's", values[at]);
    }
    Ok(values.iter().map(|&id| id as u32).collect())
}

fn bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::I64 => 8,
        Dtype::F16 | Dtype::BF16 => 2,
        _ => 4,
    }
}

/// One little-endian element of a type that was checked.
fn number(dtype: Dtype, raw: &[u8]) -> f64 {
    match (dtype, raw) {
        (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
        (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
        (Dtype::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
        (Dtype::U32, &[a, b, c, d]) => f64::from(u32::from_le_bytes([a, b, c, d])),
        (Dtype::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (Dtype::I64, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64,
        _ => unreachable!("types are checked where tensors are found"),
    }
}
