//! Every kernel as Metal's compiler gets it, checked with stock clang: see tools/metal_check.
//!
//! A kernel file with all that it includes becomes one text, as the Metal backend makes it when it starts. Texts
//! with tiles are checked twice: as simdgroup matrices, and as tensor operations.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::debian;
use crate::shell::{root, run};
use crate::translate::metal_source;

const CLANG: &str = "clang-19";
const CHECKER: &str = "tools/metal_check/check.py";
const SUITES: &str = "tools/metal_check/suites.py";
/// What the host defines where tiles are tensor operations.
const TENSOR_OPS: &str = "-DLY_TENSOR_OPS";

pub fn metal() -> anyhow::Result<()> {
    debian::need("python3", "python3")?;
    debian::need(CLANG, CLANG)?;
    run("python3", &[SUITES], &[])?;
    let texts = assemble()?;
    check(&[], &texts)?;
    // Without tiles a text is the same in both ways.
    let tiled: Vec<Text> = texts.into_iter().filter(|text| text.uses_tiles).collect();
    check(&[TENSOR_OPS], &tiled)
}

/// One kernel file with all that it includes.
struct Text {
    path: PathBuf,
    uses_tiles: bool,
}

fn check(flags: &[&str], texts: &[Text]) -> anyhow::Result<()> {
    let paths: Vec<String> = texts.iter().map(|text| text.path.strip_prefix(root()).unwrap_or(&text.path).display().to_string()).collect();
    let mut arguments = vec![CHECKER];
    arguments.extend(flags);
    arguments.extend(paths.iter().map(String::as_str));
    run("python3", &arguments, &[])
}

/// Writes each kernel file's whole text to `target/metal/`.
fn assemble() -> anyhow::Result<Vec<Text>> {
    let kernels = root().join("kernels");
    let out = root().join("target/metal");
    fs::create_dir_all(&out)?;
    let read = |name: &str| fs::read_to_string(kernels.join(name)).ok();
    let mut texts = Vec::new();
    for name in kernel_files(&kernels)? {
        let text = metal_source(&name, &read).map_err(anyhow::Error::msg)?;
        let path = out.join(name.replace('/', "_"));
        fs::write(&path, &text).with_context(|| path.display().to_string())?;
        // After the dialect, which has the words themselves.
        let own = text.split_once(&format!("#line 1 \"{name}\"")).map_or(text.as_str(), |(_, own)| own);
        texts.push(Text { path, uses_tiles: own.contains("ly_tile") });
    }
    if texts.is_empty() {
        bail!("no kernels in {}", kernels.display());
    }
    Ok(texts)
}

/// The `.metal` files, by their path in the kernels' folder.
fn kernel_files(kernels: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in ["", "dialect/"] {
        for entry in fs::read_dir(kernels.join(folder)).with_context(|| format!("kernels/{folder}"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".metal") {
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names.sort();
    Ok(names)
}
