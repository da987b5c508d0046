//! Prints kernel files as the CUDA that NVRTC gets: `cuda_source FILE...`, each into `FOLDER/NAME.cu` after
//! `--out FOLDER`. Paths are relative to `kernels/`, or else to the working folder. For `tools/cuda_check.py`.

use std::error::Error;
use std::path::{Path, PathBuf};

use lily_gpu::translate::{Target, translate};

fn main() -> Result<(), Box<dyn Error>> {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let out = match files.first().map(String::as_str) {
        Some("--out") if files.len() > 1 => Some(PathBuf::from(files.drain(..2).nth(1).unwrap_or_default())),
        _ => None,
    };
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let read = |path: &str| std::fs::read_to_string(kernels.join(path)).or_else(|_| std::fs::read_to_string(path)).ok();
    for file in &files {
        let text = translate(file, &read, Target::Cuda)?.text;
        match &out {
            Some(folder) => {
                let stem = Path::new(file).file_stem().unwrap_or_default();
                std::fs::write(folder.join(stem).with_extension("cu"), text)?;
            }
            None => print!("{text}"),
        }
    }
    Ok(())
}
