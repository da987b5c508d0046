//! Doors for the fuzz targets of `fuzz/`, which see public items only. Behind the feature `fuzzing`.

use std::fs;
use std::path::Path;

use crate::disk::container::{self, Kind};
use crate::disk::index::Index;
use crate::disk::keys::{keys, tokens_of};

const MODEL: [u8; 32] = [7; 32];

/// Treats `bytes` as a file of the cache directory, in every place where one could lie. `directory` must exist.
pub fn cache_file(directory: &Path, bytes: &[u8]) {
    let loose = directory.join("loose.state");
    fs::write(&loose, bytes).expect("the directory can be written");
    let _ = container::read(&loose, Kind::Page, &MODEL);
    let whole = container::read(&loose, Kind::State, &MODEL);
    let tokens = container::read_first(&loose, Kind::State, &MODEL).ok().and_then(|bytes| tokens_of(&bytes));
    // A file without parts is sound, and nothing that could be listed.
    let listed = container::read_first(&loose, Kind::State, &MODEL).is_ok();
    assert!(whole.is_err() || listed || whole.is_ok_and(|parts| parts.is_empty()), "a verified file can be listed");

    // Under the name that its tokens ask for, with the pages that they need: now it counts.
    let tokens = tokens.unwrap_or_else(|| vec![1, 2, 3]);
    let (pages, key) = keys(&MODEL, &tokens);
    fs::rename(&loose, directory.join(format!("{key}.state"))).expect("the file was written");
    for page in &pages {
        fs::write(directory.join(format!("{page}.page")), bytes).expect("the directory can be written");
    }
    let mut index = Index::open(directory, MODEL, 1 << 30).expect("whatever lies in a directory, it opens");
    let longer: Vec<u32> = tokens.iter().copied().chain([9]).collect();
    let found = index.find(&longer);
    assert!(found == 0 || found == tokens.len(), "{found}");
    if found > 0 {
        index.touch(&tokens);
        index.forget(&tokens, pages.first().copied());
        assert_eq!((index.find(&longer), index.states(), index.bytes()), (0, 0, 0));
    }
    drop(index);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
}
