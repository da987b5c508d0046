//! The file format of the disk tier: a header, byte strings, a checksum.
//!
//! ```text
//! magic [8] | version u32 | kind u32 | model [32] | parts u32 | length u64 of each part | the parts | blake3 [32]
//! ```
//! All numbers are little-endian; the checksum covers everything before it. Nothing in a file is believed
//! before its length agrees with its header, and nothing is handed on before the checksum does.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"LILYKEEP";
const VERSION: u32 = 1;
const FIXED: usize = 8 + 4 + 4 + 32 + 4;
const CHECKSUM: usize = 32;
/// Parts of a file: no kind has more.
const PARTS_MAX: usize = 4;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One part: a KV page.
    Page = 1,
    /// Three parts: tokens, recurrent state, the page that the last of them lie in (empty where it is full).
    State = 2,
}

/// Identifies model, device layout and format: files of another are not read.
pub(crate) type ModelHash = [u8; 32];

/// Why a file was not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {what}", path = path.display())]
    File { path: PathBuf, what: String },
    #[error(transparent)]
    Model(#[from] lily_model::ModelError),
}

impl DiskError {
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| DiskError::Io { path, source }
    }

    pub fn file(path: &Path, what: impl Into<String>) -> Self {
        DiskError::File { path: path.to_owned(), what: what.into() }
    }
}

/// Writes a file under its final name only when it is whole: a process that dies on the way leaves a `.tmp`
/// behind. What a power cut leaves is for the checksum to find, so nothing waits for the disk. Returns the bytes.
pub(crate) fn write(path: &Path, kind: Kind, model: &ModelHash, parts: &[&[u8]]) -> Result<u64, DiskError> {
    let mut header = Vec::with_capacity(FIXED + 8 * parts.len());
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((kind as u32).to_le_bytes());
    header.extend(model);
    header.extend((parts.len() as u32).to_le_bytes());
    parts.iter().for_each(|part| header.extend((part.len() as u64).to_le_bytes()));

    let temporary = path.with_extension("tmp");
    let mut hasher = blake3::Hasher::new();
    let mut write = || {
        let mut file = File::create(&temporary)?;
        for bytes in [&header[..]].iter().chain(parts) {
            hasher.update(bytes);
            file.write_all(bytes)?;
        }
        file.write_all(hasher.finalize().as_bytes())?;
        fs::rename(&temporary, path)
    };
    write().map_err(DiskError::io(path))?;
    Ok((header.len() + parts.iter().map(|part| part.len()).sum::<usize>() + CHECKSUM) as u64)
}

/// All parts of a file, verified.
pub(crate) fn read(path: &Path, kind: Kind, model: &ModelHash) -> Result<Vec<Vec<u8>>, DiskError> {
    let mut file = Opened::new(path, kind, model)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file.header);
    let lengths = std::mem::take(&mut file.lengths);
    let parts = lengths.iter().map(|&length| file.bytes(length)).collect::<Result<Vec<_>, _>>()?;
    parts.iter().for_each(|part| _ = hasher.update(part));
    if file.bytes(CHECKSUM)? != hasher.finalize().as_bytes() {
        return Err(DiskError::file(path, "the checksum does not match: the file is damaged"));
    }
    Ok(parts)
}

/// The first part of a file, not yet verified: enough to list it.
pub(crate) fn read_first(path: &Path, kind: Kind, model: &ModelHash) -> Result<Vec<u8>, DiskError> {
    let mut file = Opened::new(path, kind, model)?;
    let length = file.lengths.first().copied().ok_or_else(|| DiskError::file(path, "expected at least one part, found none"))?;
    file.bytes(length)
}

/// A file whose header was read and agrees with its length.
struct Opened<'a> {
    path: &'a Path,
    file: File,
    header: Vec<u8>,
    lengths: Vec<usize>,
}

impl<'a> Opened<'a> {
    fn new(path: &'a Path, kind: Kind, model: &ModelHash) -> Result<Self, DiskError> {
        let wrong = |what: String| Err(DiskError::file(path, what));
        let file = File::open(path).map_err(DiskError::io(path))?;
        let size = file.metadata().map_err(DiskError::io(path))?.len();
        if size < (FIXED + CHECKSUM) as u64 {
            return wrong(format!("expected at least {} bytes, found {size}", FIXED + CHECKSUM));
        }
        let mut opened = Opened { path, file, header: Vec::new(), lengths: Vec::new() };
        let fixed = opened.bytes(FIXED)?;
        let number = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        if fixed[..8] != MAGIC {
            return wrong("it is not a cache file of Lily".into());
        }
        if number(8) != VERSION {
            return wrong(format!("expected version {VERSION}, found {}", number(8)));
        }
        if number(12) != kind as u32 {
            return wrong(format!("expected kind {}, found {}", kind as u32, number(12)));
        }
        if fixed[16..48] != model[..] {
            return wrong("it belongs to another model or device".into());
        }
        let count = number(48) as usize;
        if count > PARTS_MAX {
            return wrong(format!("expected at most {PARTS_MAX} parts, found {count}"));
        }
        let lengths = opened.bytes(8 * count)?;
        let total = lengths
            .as_chunks::<8>()
            .0
            .iter()
            .try_fold((FIXED + 8 * count + CHECKSUM) as u64, |sum, &length| sum.checked_add(u64::from_le_bytes(length)));
        if total != Some(size) {
            return wrong(format!("expected {} bytes, found {size}", total.map_or("impossibly many".into(), |total| total.to_string())));
        }
        opened.lengths = lengths.as_chunks::<8>().0.iter().map(|&length| u64::from_le_bytes(length) as usize).collect();
        opened.header = [fixed, lengths].concat();
        Ok(opened)
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, DiskError> {
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(DiskError::io(self.path))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelHash = [7; 32];

    #[test]
    fn parts_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.state");
        let written = write(&path, Kind::State, &MODEL, &[b"tokens", b"", b"state"]).unwrap();
        assert_eq!(written, fs::metadata(&path).unwrap().len());
        assert_eq!(read(&path, Kind::State, &MODEL).unwrap(), [&b"tokens"[..], b"", b"state"]);
        assert_eq!(read_first(&path, Kind::State, &MODEL).unwrap(), b"tokens");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.page");
        write(&path, Kind::Page, &MODEL, &[b"some keys and values"]).unwrap();
        let whole = fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &damaged).unwrap();
            read(&path, Kind::Page, &MODEL).unwrap_err();
        }
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            read(&path, Kind::Page, &MODEL).unwrap_err();
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        let message = read(&path, Kind::Page, &MODEL).unwrap_err().to_string();
        assert!(message.ends_with(&format!("expected {} bytes, found {}", whole.len(), whole.len() + 1)), "{message}");
    }

    #[test]
    fn foreign_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.page");
        fs::write(&path, [b'#'; 200]).unwrap();
        assert!(read(&path, Kind::Page, &MODEL).unwrap_err().to_string().ends_with("it is not a cache file of Lily"));
        write(&path, Kind::State, &MODEL, &[]).unwrap();
        assert!(read(&path, Kind::Page, &MODEL).unwrap_err().to_string().ends_with("expected kind 1, found 2"));
        assert!(read(&path, Kind::State, &[8; 32]).unwrap_err().to_string().ends_with("it belongs to another model or device"));
        assert!(read_first(&path, Kind::State, &MODEL).unwrap_err().to_string().ends_with("found none"));
    }
}
