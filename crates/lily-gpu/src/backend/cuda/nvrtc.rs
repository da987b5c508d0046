//! NVRTC, CUDA's compiler as a library. Start with [`Nvrtc::load`] and [`Nvrtc::compile`].
//!
//! Loaded here and not by the bindings, which look for one version only: a driver runs the machine code of every
//! compiler of its own and of earlier major versions, so there is a choice.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;
use lily_model::ModelError;

use super::driver::fault;

/// The first major version that knows all that the kernels use.
const MAJOR_MIN: i32 = 12;

type Code = c_int;
type Program = *mut c_void;
type Create = unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Code;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code;
type Destroy = unsafe extern "C" fn(*mut Program) -> Code;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Code;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> Code;

/// The loaded compiler. Programs of several threads compile at once.
pub(super) struct Nvrtc {
    /// Major, minor.
    pub version: (i32, i32),
    /// What it compiles for, as `10 * major + minor`, ascending.
    architectures: Vec<i32>,
    create: Create,
    compile: Compile,
    destroy: Destroy,
    machine_code: (Size, Text),
    ptx: (Size, Text),
    log: (Size, Text),
    /// Keeps the functions above in memory.
    _library: Library,
}

/// What to compile for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    /// Such as `sm_90a`, or `compute_90` for PTX.
    pub architecture: String,
    /// Machine code, or else PTX, which the driver finishes.
    pub machine_code: bool,
}

impl Goal {
    /// The options of a compilation, which belong to the cache's key too. Division and square roots stay exact;
    /// numbers below the normal range become zero, which spares their slow paths and changes no result that counts.
    pub fn options(&self) -> [String; 3] {
        [format!("--gpu-architecture={}", self.architecture), "--std=c++17".into(), "--ftz=true".into()]
    }
}

impl Nvrtc {
    /// Loads the library at `given`, or else the newest in the usual places that a driver of CUDA `major` understands.
    pub fn load(given: Option<&Path>, major: i32) -> Result<Self, ModelError> {
        let search = Search::new(given, major);
        let mut broken = String::new();
        for path in search.paths() {
            // SAFETY: loading a library runs its initialisers; NVRTC's have no conditions.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Self::new(library, &path),
                // A path that is there and does not load is worth its reason; a mere name is looked for by the system.
                Err(error) if path.is_file() => broken.push_str(&format!("; {} does not load: {error}", path.display())),
                Err(_) => {}
            }
        }
        Err(fault(format!(
            "no NVRTC (CUDA's run-time compiler) found: looked for {search}{broken}; install the CUDA toolkit, or NVIDIA's package \
             of NVRTC alone, of a version from {MAJOR_MIN} to {major}, which the driver's is"
        )))
    }

    fn new(library: Library, path: &Path) -> Result<Self, ModelError> {
        let missing = |error| fault(format!("{} is no NVRTC of version {MAJOR_MIN} or later: {error}", path.display()));
        // SAFETY: the types are those of NVRTC's header, the same in every version from 12 on.
        let nvrtc = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code = *library.get(b"nvrtcVersion\0").map_err(missing)?;
            let count: unsafe extern "C" fn(*mut c_int) -> Code = *library.get(b"nvrtcGetNumSupportedArchs\0").map_err(missing)?;
            let list: unsafe extern "C" fn(*mut c_int) -> Code = *library.get(b"nvrtcGetSupportedArchs\0").map_err(missing)?;
            let (mut major, mut minor, mut number) = (0, 0, 0);
            version(&mut major, &mut minor);
            count(&mut number);
            let mut architectures = vec![0; number.max(0) as usize];
            list(architectures.as_mut_ptr());
            Nvrtc {
                version: (major, minor),
                architectures,
                create: *library.get(b"nvrtcCreateProgram\0").map_err(missing)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(missing)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(missing)?,
                machine_code: (*library.get(b"nvrtcGetCUBINSize\0").map_err(missing)?, *library.get(b"nvrtcGetCUBIN\0").map_err(missing)?),
                ptx: (*library.get(b"nvrtcGetPTXSize\0").map_err(missing)?, *library.get(b"nvrtcGetPTX\0").map_err(missing)?),
                log: (*library.get(b"nvrtcGetProgramLogSize\0").map_err(missing)?, *library.get(b"nvrtcGetProgramLog\0").map_err(missing)?),
                _library: library,
            }
        };
        Ok(nvrtc)
    }

    /// The best goal for a device: its own machine code, or the newest PTX where this compiler is older than the device.
    pub fn goal(&self, (major, minor): (i32, i32)) -> Result<Goal, ModelError> {
        goal(&self.architectures, 10 * major + minor).ok_or_else(|| {
            fault(format!(
                "NVRTC {}.{} compiles for {:?}, none of which a GPU of compute capability {major}.{minor} runs",
                self.version.0, self.version.1, self.architectures
            ))
        })
    }

    /// Compiles one file without includes; the bytes are those of a loadable module. `name` is for messages.
    ///
    /// # Errors
    /// The compiler's own log.
    pub fn compile(&self, name: &str, text: &str, goal: &Goal) -> Result<Vec<u8>, ModelError> {
        let failed = |what: &str| fault(format!("{name}: {what}"));
        let terminated = |text: &str| CString::new(text).map_err(|_| failed("the source has a zero byte"));
        let (title, code) = (terminated(name)?, terminated(text)?);
        let options = goal.options().iter().map(|one| terminated(one)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|one| one.as_ptr()).collect();

        let mut program = std::ptr::null_mut();
        // SAFETY: all strings outlive the calls and the program; it is destroyed once, after its last use.
        let built = unsafe {
            let made = (self.create)(&mut program, code.as_ptr(), title.as_ptr(), 0, std::ptr::null(), std::ptr::null());
            if made != 0 {
                return Err(failed(&format!("NVRTC takes no program: error {made}")));
            }
            let result = (self.compile)(program, pointers.len() as c_int, pointers.as_ptr());
            let built = match result {
                0 => self.take(program, if goal.machine_code { self.machine_code } else { self.ptx }),
                _ => self.take(program, self.log),
            };
            (self.destroy)(&mut program);
            built.map(|bytes| (result, bytes))
        };
        match built {
            Some((0, module)) => Ok(module),
            Some((_, log)) => Err(failed(&format!("does not compile:\n{}", String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n'])))),
            None => Err(failed("NVRTC gives no result")),
        }
    }

    /// A result of a program.
    ///
    /// # Safety
    /// The program exists.
    unsafe fn take(&self, program: Program, (size, text): (Size, Text)) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the second call writes as many bytes as the first one says.
        unsafe {
            if size(program, &mut bytes) != 0 {
                return None;
            }
            let mut out = vec![0u8; bytes];
            (text(program, out.as_mut_ptr().cast()) == 0).then_some(out)
        }
    }
}

/// For a device of compute capability `wanted`, given what the compiler knows.
fn goal(known: &[i32], wanted: i32) -> Option<Goal> {
    if known.contains(&wanted) {
        // Hopper's own instructions are in the target with an `a` alone.
        let suffix = if wanted == 90 { "a" } else { "" };
        return Some(Goal { architecture: format!("sm_{wanted}{suffix}"), machine_code: true });
    }
    let newest = known.iter().filter(|&&one| one < wanted).max()?;
    Some(Goal { architecture: format!("compute_{newest}"), machine_code: false })
}

/// Where the library may be: names by preference, each tried in every folder.
struct Search {
    names: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Search {
    fn new(given: Option<&Path>, major: i32) -> Self {
        if let Some(path) = given {
            return Search { names: vec![path.to_owned()], folders: Vec::new() };
        }
        let majors = (MAJOR_MIN..=major).rev();
        let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
        let mut folders: Vec<PathBuf> = beside.into_iter().flat_map(|folder| [folder.join("lib"), folder]).collect();
        let names = if cfg!(windows) {
            for version in majors.clone().flat_map(|major| (0..10).rev().map(move |minor| format!("v{major}.{minor}"))) {
                let toolkit = Path::new(r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA").join(version);
                folders.extend([toolkit.join(r"bin\x64"), toolkit.join("bin")].into_iter().filter(|folder| folder.is_dir()));
            }
            majors.map(|major| format!("nvrtc64_{major}0_0.dll").into()).collect()
        } else {
            folders.extend(majors.clone().map(|major| format!("/usr/local/cuda-{major}/lib64").into()));
            folders.extend(["/usr/local/cuda/lib64", "/opt/cuda/lib64"].map(PathBuf::from));
            majors.map(|major| format!("libnvrtc.so.{major}").into()).collect()
        };
        Search { names, folders }
    }

    /// A bare name first: the system's own way to find a library.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.names.iter().flat_map(|name| std::iter::once(name.clone()).chain(self.folders.iter().map(move |folder| folder.join(name))))
    }
}

impl std::fmt::Display for Search {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        let list = |all: &[PathBuf]| all.iter().map(|one| one.display().to_string()).collect::<Vec<_>>().join(", ");
        write!(out, "{}", list(&self.names))?;
        if self.folders.is_empty() {
            return Ok(());
        }
        write!(out, " in the system's library folders, {}", list(&self.folders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_goal_is_the_devices_own_code_or_the_newest_ptx_before_it() {
        let known = [75, 80, 86, 90, 100];
        let own = goal(&known, 90).unwrap();
        assert_eq!((own.architecture.as_str(), own.machine_code), ("sm_90a", true));
        let plain = goal(&known, 86).unwrap();
        assert_eq!((plain.architecture.as_str(), plain.machine_code), ("sm_86", true));
        let newer = goal(&known, 120).unwrap();
        assert_eq!((newer.architecture.as_str(), newer.machine_code), ("compute_100", false));
        assert_eq!(goal(&[90], 80), None);
    }

    #[test]
    fn a_missing_compiler_says_what_was_looked_for() {
        let nowhere = Path::new("/nowhere/libnvrtc.so.13");
        let message = Nvrtc::load(Some(nowhere), 13).err().expect("nothing is there").to_string();
        for part in ["NVRTC", "/nowhere/libnvrtc.so.13", "install", "from 12 to 13"] {
            assert!(message.contains(part), "{message:?} should contain {part:?}");
        }
    }

    #[test]
    fn newer_compilers_are_tried_first_and_none_beyond_the_driver() {
        let search = Search::new(None, 13);
        let names: Vec<String> = search.names.iter().map(|name| name.display().to_string()).collect();
        assert_eq!(names.len(), 2);
        assert!(names[0].contains("13") && names[1].contains("12"), "{names:?}");
        assert_eq!(search.paths().next(), Some(search.names[0].clone()), "the system's own way comes first");
    }

    #[test]
    fn a_file_that_is_no_library_is_told_apart_from_a_missing_one() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let message = Nvrtc::load(Some(file.path()), 12).err().expect("it is empty").to_string();
        assert!(message.contains("does not load"), "{message:?}");
    }

    /// Where NVRTC is installed, with or without a GPU; elsewhere the message of its absence is all there is to see.
    #[test]
    fn a_kernel_compiles_and_a_fault_is_told_with_its_line() {
        let nvrtc = match Nvrtc::load(None, 13) {
            Ok(nvrtc) => nvrtc,
            Err(error) => return assert!(error.to_string().contains("no NVRTC"), "{error}"),
        };
        let source = "extern \"C\" __global__ void ly_fill(unsigned *to) {\n  to[threadIdx.x] = MORE;\n}\n";
        let good = source.replace("MORE", "1");
        let code = nvrtc.compile("fill.metal", &good, &nvrtc.goal((9, 0)).expect("it knows Hopper")).expect("it compiles");
        assert_eq!(&code[1..4], b"ELF");
        let text =
            nvrtc.compile("fill.metal", &good, &Goal { architecture: "compute_80".into(), machine_code: false }).expect("it compiles");
        assert!(text.ends_with(&[0]) && String::from_utf8_lossy(&text).contains(".entry ly_fill"));
        let message =
            nvrtc.compile("fill.metal", source, &nvrtc.goal((8, 0)).expect("it knows Ampere")).expect_err("no such name").to_string();
        assert!(message.contains("fill.metal(2): error") && message.contains("MORE"), "{message:?}");
    }
}
