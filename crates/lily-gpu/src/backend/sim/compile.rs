//! Turns kernel files and the simulator's runtime into object files with the host's C++ compiler. Used by `build.rs` for
//! the fast build and at test time for the checked one; start with [`Build::objects`].
//!
//! An object's name holds a hash of all that it is made of, so that only what changed is compiled, and so that several
//! processes can share a folder.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::translate::{Kernel, Read, Target, translate};

/// A C++ compiler with the arguments that it always gets.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

/// How to compile.
pub struct Build<'a> {
    pub compiler: &'a Compiler,
    /// The folder of the simulator's runtime.
    pub runtime: &'a Path,
    /// The folder that has `dialect/`.
    pub kernels: &'a Path,
    /// With every check, instead of for speed.
    pub checked: bool,
    /// Where objects are kept.
    pub folder: &'a Path,
}

/// One source to compile.
struct Unit {
    name: String,
    text: String,
    flags: Vec<&'static str>,
}

/// Every source; AVX2 and FMA are asked for when the simulator starts.
const FLAGS: [&str; 6] = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas", "-fno-strict-aliasing"];
/// Kernels of the fast build.
const FAST: [&str; 2] = ["-O3", "-fno-exceptions"];
/// Kernels of the checked build. The callbacks are the simulator's own: no sanitizer library is linked.
const CHECKED: [&str; 8] = [
    "-O1",
    "-g",
    "-fno-exceptions",
    "-ftrivial-auto-var-init=pattern",
    "-fstack-clash-protection",
    "-fsanitize=thread",
    "-fsanitize=bounds,shift,alignment,integer-divide-by-zero,float-cast-overflow",
    "-DLY_CHECKED",
];
/// A wrong value stops the launch: with g++, and with clang.
const CHECKED_GCC: [&str; 1] = ["-fno-sanitize-recover"];
const CHECKED_CLANG: [&str; 5] =
    ["-fno-sanitize-recover=all", "-mllvm", "-tsan-instrument-read-before-write=1", "-mllvm", "-tsan-instrument-atomics=0"];

/// The kernel files of the kernels' folder and of its `cuda/`, where it has one.
pub fn kernel_files(kernels: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    for (prefix, folder) in [("", kernels.to_owned()), ("cuda/", kernels.join("cuda"))] {
        if !prefix.is_empty() && !folder.exists() {
            continue;
        }
        let unreadable = |fault: std::io::Error| format!("{}: {fault}", folder.display());
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".metal") {
                files.push(format!("{prefix}{name}"));
            }
        }
    }
    files.sort();
    Ok(files)
}

impl Build<'_> {
    /// Compiles the runtime and `files`, kernel files as `read` knows them, where they are not in the folder yet; several
    /// sources at once.
    ///
    /// # Errors
    /// What the translator or the compiler says, the latter in full.
    pub fn objects(&self, files: &[String], read: Read) -> Result<Vec<PathBuf>, String> {
        let mut units = self.runtime_units()?;
        let mut kernels = Vec::new();
        for file in files {
            let translation = translate(file, read, Target::Sim)?;
            let flags = if self.checked { self.checked_flags() } else { FAST.to_vec() };
            units.push(Unit { name: file.replace(['/', '.'], "_"), text: translation.text, flags });
            kernels.extend(translation.kernels);
        }
        units.push(Unit { name: "table".into(), text: table(&kernels)?, flags: vec!["-O1"] });
        fs::create_dir_all(self.folder).map_err(|fault| format!("{}: {fault}", self.folder.display()))?;
        let headers = self.headers()?;
        // The largest first: they take the longest.
        units.sort_by_key(|unit| std::cmp::Reverse(unit.text.len()));
        let next = Mutex::new(units.iter());
        let results = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(units.len()) {
                scope.spawn(|| {
                    loop {
                        let Some(unit) = next.lock().unwrap().next() else { break };
                        let result = self.object(unit, &headers);
                        results.lock().unwrap().push(result);
                    }
                });
            }
        });
        let mut objects = results.into_inner().unwrap().into_iter().collect::<Result<Vec<_>, _>>()?;
        objects.sort();
        Ok(objects)
    }

    fn checked_flags(&self) -> Vec<&'static str> {
        let stop: &[&str] = if is_clang(self.compiler) { &CHECKED_CLANG } else { &CHECKED_GCC };
        CHECKED.iter().chain(stop).copied().collect()
    }

    fn runtime_units(&self) -> Result<Vec<Unit>, String> {
        let mut units = Vec::new();
        for (path, text) in texts(self.runtime, ".cpp")? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let of_checked_build = name.starts_with("check");
            if of_checked_build && !self.checked {
                continue;
            }
            let flags = if self.checked { vec!["-O2", "-g", "-DLY_CHECKED"] } else { vec!["-O2"] };
            units.push(Unit { name, text, flags });
        }
        Ok(units)
    }

    /// All that any source may include.
    fn headers(&self) -> Result<String, String> {
        let mut headers = String::new();
        for folder in [self.runtime, &self.kernels.join("dialect")] {
            for (_, text) in texts(folder, ".h")? {
                headers.push_str(&text);
            }
        }
        Ok(headers)
    }

    fn object(&self, unit: &Unit, headers: &str) -> Result<PathBuf, String> {
        let arguments: Vec<&str> = self
            .compiler
            .arguments
            .iter()
            .map(String::as_str)
            .chain(FLAGS)
            .chain(machine().iter().copied())
            .chain(unit.flags.iter().copied())
            .collect();
        let key = hash(&(&self.compiler.program, &arguments, headers, &unit.text));
        let object = self.folder.join(format!("{}-{key:016x}.o", unit.name));
        if object.exists() {
            return Ok(object);
        }
        // Written beside and renamed: another process may be at the same object.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let own = format!("{}-{}-{}", unit.name, std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (source, written) = (self.folder.join(format!("{own}.cpp")), self.folder.join(format!("{own}.o")));
        let failed = |fault: std::io::Error| format!("{}: {fault}", source.display());
        fs::write(&source, &unit.text).map_err(failed)?;
        let mut command = Command::new(&self.compiler.program);
        command.args(&arguments).arg("-I").arg(self.kernels).arg("-I").arg(self.runtime);
        let output = command.arg("-c").arg(&source).arg("-o").arg(&written).output();
        let output = output.map_err(|fault| format!("{}: {fault}", self.compiler.program.display()))?;
        if !output.status.success() {
            return Err(format!("{}: {}\n{}", unit.name, output.status, String::from_utf8_lossy(&output.stderr)));
        }
        let warnings = String::from_utf8_lossy(&output.stderr);
        if !warnings.is_empty() {
            eprintln!("{}:\n{warnings}", unit.name);
        }
        fs::rename(&written, &object).map_err(failed)?;
        fs::remove_file(&source).map_err(failed)?;
        Ok(object)
    }
}

/// A hash of the same value in every process of the same build.
pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The processors that the simulator's own check lets pass.
fn machine() -> &'static [&'static str] {
    if cfg!(target_arch = "x86_64") { &["-march=x86-64-v3", "-fcf-protection=none"] } else { &[] }
}

fn is_clang(compiler: &Compiler) -> bool {
    let output = Command::new(&compiler.program).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("clang"))
}

/// The files of a folder whose names end in `end`, by name.
fn texts(folder: &Path, end: &str) -> Result<Vec<(PathBuf, String)>, String> {
    let fault = |path: &Path, fault: std::io::Error| format!("{}: {fault}", path.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| fault(folder, error))? {
        let path = entry.map_err(|error| fault(folder, error))?.path();
        if path.to_string_lossy().ends_with(end) {
            let text = fs::read_to_string(&path).map_err(|error| fault(&path, error))?;
            found.push((path, text));
        }
    }
    found.sort();
    Ok(found)
}

/// All kernels' tables, for the host to look them up by name.
fn table(kernels: &[Kernel]) -> Result<String, String> {
    let mut names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two kernel files have an entry `{}`", twice[0]));
    }
    let declarations: String = names.iter().map(|name| format!("extern \"C\" const ly::Kernel ly_kernel_{name};\n")).collect();
    let rows: String = names.iter().map(|name| format!("&ly_kernel_{name}, ")).collect();
    Ok(format!("#include \"host.h\"\n{declarations}const ly::Kernel *const ly_kernels[] = {{{rows}nullptr}};\n"))
}
