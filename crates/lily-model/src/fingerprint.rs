//! What tells one checkpoint from another without reading all of it.

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;

/// Bytes read at the beginning, in the middle and at the end of each tensor.
const SAMPLE_BYTES: usize = 1024;

impl Checkpoint {
    /// A hash of `config.json`, of every tensor's name, type and shape, and of samples of its values, as
    /// hexadecimal digits. Reads a few MB of a full-size model. Saved states carry it: training or quantising
    /// anew changes values everywhere, so the samples see it; an edit of single weights between them goes unseen.
    pub fn fingerprint(&self) -> Result<String, ModelError> {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.file("config.json")?);
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        for name in names {
            let Some(tensor) = self.tensor(name) else { continue };
            hash.update(format!("\n{name} {:?} {:?}\n", tensor.dtype, tensor.shape).as_bytes());
            let bytes: &[u8] = &tensor.bytes;
            let length = bytes.len().min(SAMPLE_BYTES);
            for start in [0, (bytes.len() - length) / 2, bytes.len() - length] {
                hash.update(&bytes[start..start + length]);
            }
        }
        Ok(hash.finalize().to_hex().to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::{Checkpoint, ModelConfig, synth::Synth};

    #[test]
    fn other_values_give_another_fingerprint() {
        let print = |seed| {
            let dir = tempfile::tempdir().unwrap();
            let synth = Synth { seed, ..Synth::new(ModelConfig::tiny()) };
            synth.write(dir.path(), &mut |_, _| {}).unwrap();
            Checkpoint::open(dir.path()).unwrap().fingerprint().unwrap()
        };
        assert_eq!(print(1), print(1));
        assert_ne!(print(1), print(2));
    }

    #[test]
    fn a_changed_tail_of_one_tensor_shows() {
        let dir = tempfile::tempdir().unwrap();
        Synth::new(ModelConfig::tiny()).write(dir.path(), &mut |_, _| {}).unwrap();
        let print = || Checkpoint::open(dir.path()).unwrap().fingerprint().unwrap();
        let before = print();
        let shard = dir.path().join("model.safetensors");
        let mut bytes = fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&shard, bytes).unwrap();
        assert_ne!(before, print());
    }
}
