//! The simulator's C interface, as `sim/host.h` declares it, and the safe [`Simulator`] over it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use super::SimOptions;

#[repr(C)]
struct RawOptions {
    threads: c_uint,
    reverse: c_uint,
    poison: c_uint,
    timeout_s: c_uint,
    fresh_poison: c_uint,
}

#[repr(C)]
pub struct RawView {
    pub at: *mut c_void,
    pub bytes: usize,
}

#[repr(C)]
struct RawLaunch {
    kernel: *const RawKernel,
    views: *const RawView,
    count: c_uint,
    grid: [c_uint; 3],
    threads: c_uint,
}

#[repr(C)]
struct RawParam {
    name: *const c_char,
    index: c_int,
    access: c_char,
    bytes: usize,
}

#[repr(C)]
struct RawExtent {
    name: *const c_char,
    offset: usize,
    bytes: usize,
}

#[repr(C)]
struct RawKernel {
    name: *const c_char,
    lane: *const c_void,
    shared: usize,
    extents: *const RawExtent,
    params: *const RawParam,
    extents_count: c_int,
    params_count: c_int,
}

/// `struct ly::Device`.
#[repr(C)]
struct RawDevice {
    opaque: [u8; 0],
}

#[repr(C)]
pub struct Api {
    checked: c_uint,
    kernels: *const *const RawKernel,
    supported: unsafe extern "C" fn() -> *const c_char,
    open: unsafe extern "C" fn(*const RawOptions) -> *mut RawDevice,
    close: unsafe extern "C" fn(*mut RawDevice),
    allocate: unsafe extern "C" fn(*mut RawDevice, *const c_char, usize) -> *mut c_void,
    import: unsafe extern "C" fn(*mut RawDevice, *const c_char, *mut c_void, usize),
    written: unsafe extern "C" fn(*mut RawDevice, *const c_void, usize),
    level: unsafe extern "C" fn(*mut RawDevice),
    run: unsafe extern "C" fn(*mut RawDevice, *const RawLaunch) -> c_int,
    error: unsafe extern "C" fn(*mut RawDevice) -> *const c_char,
}

unsafe extern "C" {
    fn ly_sim_api() -> *const Api;
}

/// What a kernel does with one of its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferParameter {
    pub name: String,
    pub writable: bool,
}

/// A kernel's table.
#[derive(Clone, Debug)]
pub struct KernelTable {
    pub name: String,
    /// By index.
    pub buffers: Vec<BufferParameter>,
    /// Bytes of the argument struct, the buffer after the last, if there is one.
    pub args_bytes: Option<usize>,
    /// Name and bytes of each.
    pub threadgroup_arrays: Vec<(String, usize)>,
    raw: *const RawKernel,
}

// SAFETY: the table is constant and lives as long as the process.
unsafe impl Send for KernelTable {}
// SAFETY: as above.
unsafe impl Sync for KernelTable {}

/// A set of compiled kernels with the runtime that runs them. Lives as long as the process.
#[derive(Clone, Copy)]
pub struct Simulator {
    api: &'static Api,
}

// SAFETY: an `Api` holds functions and constant tables; its functions may be called from any thread.
unsafe impl Send for Simulator {}

impl Simulator {
    /// The kernels of `kernels/`, compiled for speed with this program.
    pub fn built_in() -> Self {
        // SAFETY: the function has no preconditions; what it points to is constant.
        Simulator { api: unsafe { &*ly_sim_api() } }
    }

    /// # Safety
    /// `api` must come from `ly_sim_api` of a library that is never unloaded.
    pub(super) unsafe fn of_library(api: *const Api) -> Self {
        // SAFETY: by the caller's promise.
        Simulator { api: unsafe { &*api } }
    }

    /// Whether this is the checked build.
    pub fn checked(&self) -> bool {
        self.api.checked != 0
    }

    pub fn kernels(&self) -> Vec<KernelTable> {
        let mut tables = Vec::new();
        let mut at = self.api.kernels;
        // SAFETY: the table of tables ends with a null pointer, and every table is what the translator wrote.
        unsafe {
            while !(*at).is_null() {
                tables.push(table(*at));
                at = at.add(1);
            }
        }
        tables
    }

    pub fn kernel(&self, name: &str) -> Option<KernelTable> {
        self.kernels().into_iter().find(|kernel| kernel.name == name)
    }

    /// Why this machine cannot run it.
    fn unsupported(&self) -> Option<String> {
        // SAFETY: the function has no preconditions and gives null or a constant string.
        let reason = unsafe { (self.api.supported)() };
        // SAFETY: as above.
        (!reason.is_null()).then(|| unsafe { text(reason) })
    }
}

/// # Safety
/// `at` must be a string that ends with a zero.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// # Safety
/// `raw` must be a table that the translator wrote.
unsafe fn table(raw: *const RawKernel) -> KernelTable {
    // SAFETY: by the caller's promise; its counts are those of its arrays.
    unsafe {
        let kernel = &*raw;
        let params = std::slice::from_raw_parts(kernel.params, kernel.params_count as usize);
        let extents = std::slice::from_raw_parts(kernel.extents, kernel.extents_count as usize);
        let mut buffers: Vec<&RawParam> = params.iter().filter(|param| param.access as u8 != b'a').collect();
        buffers.sort_by_key(|param| param.index);
        let writable = |param: &&RawParam| BufferParameter { name: text(param.name), writable: param.access as u8 == b'w' };
        KernelTable {
            name: text(kernel.name),
            buffers: buffers.iter().map(writable).collect(),
            args_bytes: params.iter().find(|param| param.access as u8 == b'a').map(|param| param.bytes),
            threadgroup_arrays: extents.iter().map(|extent| (text(extent.name), extent.bytes)).collect(),
            raw,
        }
    }
}

/// An open simulator: its buffers and host threads.
pub struct Device {
    simulator: Simulator,
    raw: NonNull<RawDevice>,
}

// SAFETY: the runtime keeps nothing of a device in the thread that opened it, and every call takes the device by
// exclusive borrow.
unsafe impl Send for Device {}

impl Device {
    pub fn open(simulator: Simulator, options: &SimOptions) -> Result<Device, String> {
        if let Some(reason) = simulator.unsupported() {
            return Err(reason);
        }
        let options = RawOptions {
            threads: options.threads.max(1) as c_uint,
            reverse: options.reverse_lanes.into(),
            poison: options.poison_threadgroup.into(),
            timeout_s: options.timeout_s,
            fresh_poison: options.poison_buffers.into(),
        };
        // SAFETY: the options live through the call.
        let raw = unsafe { (simulator.api.open)(&options) };
        let raw = NonNull::new(raw).ok_or("the simulator did not start")?;
        Ok(Device { simulator, raw })
    }

    /// Memory that lives as long as the device; `None` where there is none left.
    pub fn allocate(&mut self, name: &str, bytes: usize) -> Option<NonNull<u8>> {
        let name = CString::new(name.replace('\0', " ")).expect("no zeros");
        // SAFETY: the name lives through the call, which copies it.
        let at = unsafe { (self.simulator.api.allocate)(self.raw.as_ptr(), name.as_ptr(), bytes) };
        NonNull::new(at.cast())
    }

    /// # Safety
    /// The bytes must live as long as the device.
    pub unsafe fn import(&mut self, name: &str, bytes: &[u8]) {
        let name = CString::new(name.replace('\0', " ")).expect("no zeros");
        // SAFETY: the memory lives by the caller's promise; the backend binds it to parameters that are only read.
        unsafe { (self.simulator.api.import)(self.raw.as_ptr(), name.as_ptr(), bytes.as_ptr().cast_mut().cast(), bytes.len()) }
    }

    /// Says that the host has filled these bytes.
    pub fn written(&mut self, at: *const u8, bytes: usize) {
        // SAFETY: the range is looked up, not touched.
        unsafe { (self.simulator.api.written)(self.raw.as_ptr(), at.cast(), bytes) }
    }

    /// Says that launches from here on wait for all before.
    pub fn level(&mut self) {
        // SAFETY: the device is open.
        unsafe { (self.simulator.api.level)(self.raw.as_ptr()) }
    }

    /// Runs one launch to its end, or to its first fault.
    ///
    /// # Safety
    /// There must be a view for each of the kernel's buffers and its argument struct, of memory that lives through the
    /// call and that nothing else writes meanwhile, nor reads where the kernel writes.
    pub unsafe fn run(&mut self, kernel: &KernelTable, views: &[RawView], grid: [u32; 3], threads: u32) -> Result<(), String> {
        let launch = RawLaunch { kernel: kernel.raw, views: views.as_ptr(), count: views.len() as c_uint, grid, threads };
        // SAFETY: by the caller's promise. A kernel that leaves its views comes back as a fault, or is one that the
        // fast build misses: kernels are tested on the checked build.
        let failed = unsafe { (self.simulator.api.run)(self.raw.as_ptr(), &launch) };
        if failed == 0 {
            return Ok(());
        }
        // SAFETY: the string lives until the next launch.
        Err(unsafe { text((self.simulator.api.error)(self.raw.as_ptr())) })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: closed once.
        unsafe { (self.simulator.api.close)(self.raw.as_ptr()) }
    }
}
