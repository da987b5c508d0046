//! House rules that no other tool checks, each with its reason in the message.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::shell::root;

/// Lines of a source file beyond which it cannot be read in five minutes.
const LINES_MAX: usize = 500;

pub fn tidy() -> anyhow::Result<()> {
    let mut faults = Vec::new();
    for file in sources()? {
        let text = fs::read_to_string(&file)?;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        check(&name, &text, &mut faults);
    }
    if faults.is_empty() {
        eprintln!("tidy: all rules hold");
        return Ok(());
    }
    bail!("tidy:\n{}", faults.join("\n"))
}

fn check(name: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > LINES_MAX {
        faults.push(format!("{name}: {lines} lines; split it by subject, so that each file reads in five minutes ({LINES_MAX} at most)"));
    }
    if name.ends_with(".rs") && !text.starts_with("//!") {
        faults.push(format!("{name}: opens without `//!`; say what the module does and where to start reading"));
    }
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if ["utils", "util", "common", "helpers", "misc"].contains(&stem) {
        faults.push(format!("{name}: name the file after its subject"));
    }
    for (at, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", at + 1);
        if line.trim_end() != line {
            faults.push(format!("{place}: trailing white space"));
        }
        let environment = ["std::env::var", "env::var("].iter().any(|call| line.contains(call));
        if environment
            && name.ends_with(".rs")
            && !name.starts_with("xtask/")
            // Cargo hands a build script what it knows that way.
            && !name.ends_with("/build.rs")
            && name != "crates/lily/src/cli.rs"
            && !name.contains("/tests/")
        {
            faults.push(format!("{place}: reads the environment; flags of crates/lily/src/cli.rs are the only switches"));
        }
    }
}

/// Every Rust, Python and Metal source of the project.
fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["crates", "xtask", "tools", "kernels"].iter().map(|dir| root().join(dir)).filter(|dir| dir.is_dir()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| ["rs", "py", "metal"].iter().any(|known| end == *known)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::check;

    fn faults(name: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        check(name, text, &mut faults);
        faults
    }

    #[test]
    fn each_rule_finds_its_fault() {
        assert!(faults("crates/x/src/lib.rs", "//! Fine.\n").is_empty());
        assert!(faults("crates/x/src/lib.rs", "fn bare() {}\n")[0].contains("opens without"));
        assert!(faults("crates/x/src/utils.rs", "//! Things.\n")[0].contains("after its subject"));
        assert!(faults("crates/x/src/lib.rs", "//! Space. \n")[0].contains("trailing"));
        assert!(faults("crates/x/src/lib.rs", "//! A.\nlet a = std::env::var(\"A\");\n")[0].contains("environment"));
        assert!(faults("crates/x/src/lib.rs", &format!("//! Long.\n{}", "//\n".repeat(500)))[0].contains("501 lines"));
    }
}
