//! Kernels: found by entry name in the kernel files, translated, compiled by NVRTC in parallel, loaded. Start with
//! [`Kernels::prepare`].

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::driver::sys;
use lily_model::ModelError;

use super::driver::{Driver, check, fault};
use super::nvrtc::{Goal, Nvrtc};
use crate::translate::{Kernel, Kind, Target, cuda, translate, translate_only};

/// Gives the text of a file by its path.
pub(super) type Read = Box<dyn Fn(&str) -> Option<String> + Send>;

/// The kernels' folder.
pub(super) struct Folder {
    /// The files that have entries.
    pub files: Vec<String>,
    /// Any file by its path in the folder, such as `lib/rows.h`.
    pub read: Read,
}

/// Entries of one file that are compiled together: enough to share the reading of the file, few enough to spread a file
/// of many instances over the processor's cores.
const ENTRIES_TOGETHER: usize = 6;

/// A loaded entry.
pub(super) struct Function {
    pub handle: sys::CUfunction,
    /// What it takes, in the order of its signature.
    pub takes: Vec<Takes>,
    pub bindings: usize,
    /// Bytes of threadgroup arrays that a launch must make room for.
    pub room: u32,
    /// Its registers allow so many threads in a threadgroup.
    pub threads_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// `[[buffer(n)]]`.
    Buffer(usize),
    /// The argument struct, by value.
    Args,
}

/// All entries made ready.
#[derive(Default)]
pub(super) struct Kernels {
    functions: HashMap<&'static str, Function>,
    modules: Vec<sys::CUmodule>,
}

// SAFETY: as for `Driver`: handles of the driver, used with its context current.
unsafe impl Send for Kernels {}

/// Some entries of one file, in CUDA.
struct Unit {
    file: String,
    text: String,
    kernels: Vec<Kernel>,
}

/// Where compiled units come from.
pub(super) struct Workshop<'a> {
    pub nvrtc: &'a Nvrtc,
    pub goal: Goal,
    /// A folder for compiled units, to be found again at the next start.
    pub cache: Option<&'a Path>,
}

impl Kernels {
    /// Makes `entries` ready. The driver's context is current.
    pub fn prepare(&mut self, folder: &Folder, entries: &[&'static str], driver: &Driver, workshop: &Workshop) -> Result<(), ModelError> {
        let missing: Vec<&'static str> = entries.iter().copied().filter(|entry| !self.functions.contains_key(entry)).collect();
        let units = units(folder, &missing)?;
        for (unit, module) in units.iter().zip(build(&units, workshop)?) {
            let module = load(unit, &module, driver, workshop)?;
            self.modules.push(module);
            for kernel in &unit.kernels {
                let name = missing.iter().find(|entry| **entry == kernel.name).expect("units hold wanted entries alone");
                self.functions.insert(name, function(module, kernel)?);
            }
        }
        Ok(())
    }

    pub fn get(&self, entry: &str) -> Result<&Function, ModelError> {
        self.functions.get(entry).ok_or_else(|| fault(format!("kernel `{entry}` was not prepared at load")))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded by `prepare`, unloaded once; the owner has waited for all work and made the context current.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}

/// Translates the files that hold these entries.
fn units(folder: &Folder, entries: &[&str]) -> Result<Vec<Unit>, ModelError> {
    let mut owners: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut found: HashMap<String, &str> = HashMap::new();
    for file in &folder.files {
        for kernel in translate(file, &folder.read, Target::Cuda).map_err(fault)?.kernels {
            if let Some(other) = found.insert(kernel.name.clone(), file) {
                return Err(fault(format!("kernel `{}` is in {other} and in {file}", kernel.name)));
            }
            if entries.contains(&kernel.name.as_str()) {
                owners.entry(file).or_default().push(kernel.name);
            }
        }
    }
    if let Some(unknown) = entries.iter().find(|entry| !found.contains_key(**entry)) {
        return Err(fault(format!("expected a kernel `{unknown}`, found none among the {} of {} files", found.len(), folder.files.len())));
    }
    let mut units = Vec::new();
    for (file, names) in owners {
        for together in names.chunks(ENTRIES_TOGETHER) {
            let wanted = |name: &str| together.iter().any(|one| one == name);
            let translation = translate_only(file, &folder.read, Target::Cuda, &wanted).map_err(fault)?;
            units.push(Unit { file: file.to_owned(), text: translation.text, kernels: translation.kernels });
        }
    }
    Ok(units)
}

/// Compiles all units, as many at once as there are cores; in their order.
fn build(units: &[Unit], workshop: &Workshop) -> Result<Vec<Vec<u8>>, ModelError> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(units.len());
    let next = Mutex::new(units.iter().enumerate());
    let work = || {
        let mut done = Vec::new();
        loop {
            let Some((at, unit)) = next.lock().expect("no thread panics with the lock").next() else { return done };
            done.push((at, workshop.module(unit)));
        }
    };
    let mut built: Vec<(usize, Result<Vec<u8>, ModelError>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a compiling thread does not panic")).collect()
    });
    built.sort_by_key(|(at, _)| *at);
    built.into_iter().map(|(_, module)| module).collect()
}

impl Workshop<'_> {
    /// A compiled unit, from the cache where it has it. A cache that cannot be read or written is no error.
    fn module(&self, unit: &Unit) -> Result<Vec<u8>, ModelError> {
        let kept = self.cache.map(|folder| folder.join(self.key(unit)));
        if let Some(module) = kept.as_deref().and_then(recall) {
            return Ok(module);
        }
        let module = self.nvrtc.compile(&unit.file, &unit.text, &self.goal)?;
        if let Some(path) = kept {
            keep(&path, &module);
        }
        Ok(module)
    }

    /// The file name of a unit: all that its machine code depends on.
    fn key(&self, unit: &Unit) -> PathBuf {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?} {:?}\n", self.nvrtc.version, self.goal.options()).as_bytes());
        hash.update(unit.text.as_bytes());
        let stem = Path::new(&unit.file).file_stem().unwrap_or_default().to_string_lossy();
        format!("{stem}-{}.cubin", &hash.finalize().to_hex()[..32]).into()
    }
}

/// A kept module, followed by its hash: the driver must not see a broken file.
fn recall(path: &Path) -> Option<Vec<u8>> {
    let mut module = std::fs::read(path).ok()?;
    let hash = module.split_off(module.len().checked_sub(blake3::OUT_LEN)?);
    (blake3::hash(&module).as_bytes()[..] == hash).then_some(module)
}

/// Written under another name first, so that no one ever reads half a file.
fn keep(path: &Path, module: &[u8]) {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let whole = [module, blake3::hash(module).as_bytes()].concat();
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&part, whole));
    if written.and_then(|()| std::fs::rename(&part, path)).is_err() {
        let _ = std::fs::remove_file(&part);
    }
}

fn load(unit: &Unit, bytes: &[u8], driver: &Driver, workshop: &Workshop) -> Result<sys::CUmodule, ModelError> {
    let mut module = std::ptr::null_mut();
    // PTX is text and must end with a zero; NVRTC gives it one. SAFETY: the bytes outlive the call.
    let result = unsafe { sys::cuModuleLoadData(&mut module, bytes.as_ptr().cast()) };
    let (major, minor) = (driver.version / 1000, driver.version % 1000 / 10);
    check(result, || {
        format!(
            "{}: loading code for {} by NVRTC {:?} into a driver for CUDA {major}.{minor}",
            unit.file, workshop.goal.architecture, workshop.nvrtc.version
        )
    })?;
    Ok(module)
}

fn function(module: sys::CUmodule, kernel: &Kernel) -> Result<Function, ModelError> {
    let name = CString::new(cuda::entry(&kernel.name)).map_err(|_| fault(format!("kernel `{}`: a name with a zero byte", kernel.name)))?;
    let (mut handle, mut threads, room) = (std::ptr::null_mut(), 0, kernel.threadgroup_kib * 1024);
    use sys::CUfunction_attribute_enum as A;
    let limit = A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: the module is loaded; all values outlive the calls.
    unsafe {
        check(sys::cuModuleGetFunction(&mut handle, module, name.as_ptr()), || format!("kernel `{}`", kernel.name))?;
        check(sys::cuFuncGetAttribute(&mut threads, limit, handle), || format!("kernel `{}`: its limits", kernel.name))?;
        if room > 0 {
            let allowed = sys::cuFuncSetAttribute(handle, A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room as i32);
            check(allowed, || format!("kernel `{}`: {room} bytes of threadgroup memory", kernel.name))?;
        }
    }
    let takes = |kind: &Kind| match kind {
        Kind::Buffer { index, .. } => Some(Takes::Buffer(*index)),
        Kind::Args { .. } => Some(Takes::Args),
        Kind::Builtin(_) => None,
    };
    let takes: Vec<Takes> = kernel.parameters.iter().filter_map(|parameter| takes(&parameter.kind)).collect();
    let bindings = takes.iter().filter(|one| **one != Takes::Args).count();
    Ok(Function { handle, takes, bindings, room, threads_max: threads as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("dialect/cuda.h", "// words\n"),
        ("one.metal", "kernel void fill(device uint *to [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) { to[i] = i; }\n"),
        ("two.metal", "kernel void copy(device const uint *from [[buffer(0)]], device uint *to [[buffer(1)]]) { to[0] = from[0]; }\n"),
        ("three.metal", "kernel void fill(device uint *to [[buffer(0)]]) { to[0] = 1; }\n"),
    ];

    fn folder(files: &[&str]) -> Folder {
        let read = |path: &str| FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        Folder { files: files.iter().map(|file| (*file).to_owned()).collect(), read: Box::new(read) }
    }

    #[test]
    fn only_files_with_wanted_entries_are_compiled() {
        let units = units(&folder(&["one.metal", "two.metal"]), &["copy"]).expect("it is there");
        assert_eq!(units.len(), 1);
        assert_eq!(units[0].file, "two.metal");
        assert!(units[0].text.contains("ly_copy(") && !units[0].text.contains("fill"));
    }

    #[test]
    fn a_kept_module_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/one.cubin");
        assert_eq!(recall(&path), None);
        keep(&path, b"machine code");
        assert_eq!(recall(&path).as_deref(), Some(&b"machine code"[..]));
        let whole = std::fs::read(&path).expect("it is there");
        for broken in [&whole[..whole.len() - 1], &whole[..8], &[whole.as_slice(), b"x"].concat()] {
            std::fs::write(&path, broken).expect("it is ours");
            assert_eq!(recall(&path), None);
        }
    }

    #[test]
    fn an_unknown_entry_is_named() {
        let message = units(&folder(&["one.metal", "two.metal"]), &["copy", "fold"]).err().expect("there is no fold").to_string();
        assert!(message.contains("`fold`") && message.contains("found none among the 2"), "{message:?}");
    }

    #[test]
    fn an_entry_in_two_files_is_refused() {
        let message = units(&folder(&["one.metal", "three.metal"]), &["fill"]).err().expect("it is there twice").to_string();
        assert!(message.contains("one.metal") && message.contains("three.metal"), "{message:?}");
    }
}
