//! Any bytes as model.safetensors: a clear error, or tensors that lie inside the file.

use std::cell::RefCell;

use lily_model::Checkpoint;

thread_local! {
    static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

pub fn run(data: &[u8]) {
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| tempfile::tempdir().expect("a temporary directory"));
        let path = directory.path().join("model.safetensors");
        // A new file each time: the old one may still be mapped.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, data).expect("the directory can be written");
        match Checkpoint::open(directory.path()) {
            Err(error) => assert!(error.to_string().contains("model.safetensors"), "{error}"),
            Ok(checkpoint) => {
                for name in checkpoint.names() {
                    let tensor = checkpoint.tensor(name).expect("names are of tensors");
                    if let Some(dtype) = tensor.dtype {
                        assert_eq!(tensor.bytes.len(), tensor.shape.iter().product::<usize>() * dtype.bytes(), "{name}");
                    }
                    let _ = tensor.bytes.iter().fold(0u8, |sum, byte| sum ^ byte);
                }
            }
        }
    });
}
