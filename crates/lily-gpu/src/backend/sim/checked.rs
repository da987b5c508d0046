//! The checked build: the kernels compiled so that every load and store is reported, as a library that is loaded when a
//! test asks for it. It needs nothing but the C++ compiler that built this crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::Simulator;
use super::api::Api;
use super::compile::{Build, Compiler, hash, kernel_files};
use crate::translate::Read;

/// Compiles and loads the project's own kernels. `cache` keeps what was compiled, for the next test.
///
/// # Errors
/// What the compiler or the loader says.
pub fn load(cache: &Path) -> Result<Simulator, String> {
    let kernels = folder("../../kernels");
    let read = |name: &str| fs::read_to_string(kernels.join(name)).ok();
    load_files(&kernel_files(&kernels)?, &read, true, cache)
}

/// Compiles and loads other kernels: `files`, with all that they include, as `read` gives them. Either build.
///
/// # Errors
/// What the translator, the compiler or the loader says.
pub fn load_files(files: &[String], read: Read, checked: bool, cache: &Path) -> Result<Simulator, String> {
    // One at a time: tests of one process that want the same kernels would all compile them.
    static ONE: Mutex<()> = Mutex::new(());
    let _held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = Compiler { program: env!("LILY_CXX").into(), arguments: Vec::new() };
    let build = Build { compiler: &compiler, runtime: &folder("sim"), kernels: &folder("../../kernels"), checked, folder: cache };
    let objects = build.objects(files, read)?;
    let library = cache.join(format!("sim-{:016x}.so", hash(&objects)));
    if !library.exists() {
        link(&compiler, &objects, &library)?;
    }
    open(&library)
}

fn folder(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Symbols are bound inside the library: the program has the fast build's of the same names.
fn link(compiler: &Compiler, objects: &[PathBuf], library: &Path) -> Result<(), String> {
    let own = library.with_extension(format!("{}-{:?}.part", std::process::id(), std::thread::current().id()));
    let mut command = Command::new(&compiler.program);
    command.arg("-shared").args(objects).arg("-o").arg(&own).arg("-pthread");
    if cfg!(target_os = "linux") {
        command.args(["-Wl,-Bsymbolic", "-Wl,-z,defs", "-ldl"]);
    }
    let output = command.output().map_err(|fault| format!("{}: {fault}", compiler.program.display()))?;
    if !output.status.success() {
        return Err(format!("linking {}: {}\n{}", library.display(), output.status, String::from_utf8_lossy(&output.stderr)));
    }
    fs::rename(&own, library).map_err(|fault| format!("{}: {fault}", library.display()))
}

fn open(library: &Path) -> Result<Simulator, String> {
    let fault = |fault: libloading::Error| format!("{}: {fault}", library.display());
    // SAFETY: the library's initialisers set up its own constants only.
    let loaded = unsafe { libloading::Library::new(library) }.map_err(fault)?;
    // SAFETY: `ly_sim_api` has this type in sim/run.cpp; the library is leaked, hence never unloaded.
    unsafe {
        let api: libloading::Symbol<unsafe extern "C" fn() -> *const Api> = loaded.get(b"ly_sim_api").map_err(fault)?;
        let simulator = Simulator::of_library(api());
        std::mem::forget(loaded);
        Ok(simulator)
    }
}
