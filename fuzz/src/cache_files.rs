//! Any bytes as a file of the cache directory: ignored with a message, or what they say they are.

use std::cell::RefCell;

use lily_engine::fuzzing::cache_file;

thread_local! {
    static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

pub fn run(data: &[u8]) {
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| tempfile::tempdir().expect("a temporary directory"));
        cache_file(directory.path(), data);
    });
}
