//! Collects the kernel sources for the devices that compile them when they start, and compiles them for the simulator.

// Shared with the library, which uses more of them.
#[allow(dead_code)]
#[path = "src/backend/sim/compile.rs"]
mod compile;
#[allow(dead_code, unused_imports)]
#[path = "src/translate/mod.rs"]
mod translate;

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    if let Err(fault) = build() {
        // Cargo shows what a failing build script wrote; a panic would bury it under a backtrace.
        eprintln!("{fault}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).map_err(|fault| format!("{name}: {fault}"));
    let crate_folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let kernels = crate_folder.join("../../kernels").canonicalize().map_err(|fault| format!("kernels: {fault}"))?;
    println!("cargo:rerun-if-changed={}", kernels.display());
    println!("cargo:rerun-if-changed=sim");
    println!("cargo:rerun-if-changed=src/translate");
    println!("cargo:rerun-if-changed=src/backend/sim/compile.rs");
    println!("cargo:rerun-if-changed=build.rs");
    embed(&kernels, &out)?;

    let simulated = std::env::var_os("CARGO_FEATURE_SIM").is_some() && std::env::var_os("CARGO_CFG_UNIX").is_some();
    if !simulated {
        return Ok(());
    }
    let crossing = variable("HOST")? != variable("TARGET")?;
    let compiler = compiler();
    println!("cargo:rustc-env=LILY_CXX={}", compiler.program.display());
    let read = |name: &str| fs::read_to_string(kernels.join(name)).ok();
    let files = compile::kernel_files(&kernels)?;
    let runtime = crate_folder.join("sim");
    // Beside the build folders of all sets of features, which need the same objects.
    let objects = out.ancestors().nth(2).unwrap_or(&out).join("lily-sim-objects");
    let build = compile::Build { compiler: &compiler, runtime: &runtime, kernels: &kernels, checked: false, folder: &objects };
    match build.objects(&files, &read) {
        Ok(objects) => {
            let mut archive = cc::Build::new();
            archive.cpp(true);
            for object in &objects {
                archive.object(object);
            }
            archive.compile("lily_sim");
            Ok(())
        }
        // Lints and checks for another system's target do without its C++ compiler; linking then fails.
        Err(fault) if crossing => {
            println!("cargo:warning=the simulator is not compiled for this target: {}", fault.lines().next().unwrap_or_default());
            Ok(())
        }
        Err(fault) => Err(fault),
    }
}

/// The compiler that the `cc` crate finds: `CXX` or the system's.
fn compiler() -> compile::Compiler {
    let tool = cc::Build::new().cpp(true).no_default_flags(true).get_compiler();
    let arguments = tool.args().iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    compile::Compiler { program: tool.path().to_owned(), arguments }
}

/// Writes `kernel_sources.rs`: every kernel file and header, by its path in the kernels' folder.
fn embed(kernels: &Path, out: &Path) -> Result<(), String> {
    let mut paths = Vec::new();
    for folder in ["", "lib", "dialect", "cuda"] {
        let Ok(entries) = fs::read_dir(kernels.join(folder)) else { continue };
        for entry in entries {
            let path = entry.map_err(|fault| format!("kernels/{folder}: {fault}"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".metal") || name.ends_with(".h") {
                paths.push((if folder.is_empty() { name } else { format!("{folder}/{name}") }, path));
            }
        }
    }
    paths.sort();
    let rows: String = paths.iter().map(|(name, path)| format!("    ({name:?}, include_str!({path:?})),\n")).collect();
    let text = format!("pub const FILES: &[(&str, &str)] = &[\n{rows}];\n");
    fs::write(out.join("kernel_sources.rs"), text).map_err(|fault| format!("kernel_sources.rs: {fault}"))
}
