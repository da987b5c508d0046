//! The driver: found at run time, one device, one context, one stream. Start with [`Driver::open`].

use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use lily_model::ModelError;

/// Drivers before 12.0 lack calls that graphs need; 525 is the first that has them.
const VERSION_MIN: i32 = 12_000;

/// One opened device. Everything that belongs to it holds an [`Arc`] of it, so that it closes last.
#[derive(Debug)]
pub(super) struct Driver {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub stream: sys::CUstream,
    pub name: String,
    pub multiprocessors: i32,
    /// Compute capability: major, minor.
    pub capability: (i32, i32),
    /// The newest CUDA that the driver runs, as `1000 * major + 10 * minor`.
    pub version: i32,
}

// SAFETY: the handles name objects of the driver, whose calls may come from any thread that has the context current;
// `enter` makes it so before every use.
unsafe impl Send for Driver {}
// SAFETY: as above; the driver locks what its calls share.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens device number `ordinal`.
    ///
    /// # Errors
    /// If the driver or the device is missing or too old: what was looked for, what was found, what to do.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, ModelError> {
        load()?;
        start()?;
        let version = version()?;
        let device = device(ordinal)?;
        let name = device_name(device)?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: `value` outlives the call.
            check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, || format!("properties of {name}")).map(|()| value)
        };
        use sys::CUdevice_attribute_enum as A;
        let capability =
            (attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?, attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?);
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(fault(format!("expected a GPU of compute capability 8.0 (Ampere) or later, {name} has {major}.{minor}")));
        }
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let (context, stream) = context(device, &name)?;
        Ok(Arc::new(Driver { device, context, stream, name, multiprocessors, capability, version }))
    }

    /// Makes this device's context the calling thread's.
    pub fn enter(&self) -> Result<(), ModelError> {
        // SAFETY: the context is retained until this value drops.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, || format!("selecting {}", self.name))
    }

    /// Free and total bytes of the device's memory, of all processes together.
    pub fn memory(&self) -> Result<(usize, usize), ModelError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both values outlive the call.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, || "free memory".into())?;
        Ok((free, total))
    }

    /// Whether launches may begin while the one before ends: compute capability 9.0, CUDA 12.3.
    pub fn overlaps(&self) -> bool {
        self.capability.0 >= 9 && self.version >= 12030
    }

    /// Waits for everything queued.
    pub fn wait(&self) -> Result<(), ModelError> {
        // SAFETY: the stream lives as long as this value.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, || "running the queued work".into())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: all that used the stream and the context held this value, and is gone. Errors have no one to go to.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// An error of this backend.
pub(super) fn fault(what: String) -> ModelError {
    ModelError::Device(format!("cuda: {what}"))
}

/// Turns the driver's answer into an error that says what was attempted.
pub(super) fn check(result: CUresult, what: impl FnOnce() -> String) -> Result<(), ModelError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(fault(format!("{}: {}", what(), explain(result))))
}

/// The driver's own words for an error: `CUDA_ERROR_OUT_OF_MEMORY (out of memory)`.
fn explain(result: CUresult) -> String {
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the driver sets both to its own constant strings, or leaves null for an error it does not know.
    let (name, text) = unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
        let words = |from: *const std::ffi::c_char| (!from.is_null()).then(|| CStr::from_ptr(from).to_string_lossy().into_owned());
        (words(name), words(text))
    };
    match (name, text) {
        (Some(name), Some(text)) => format!("{name} ({text})"),
        _ => format!("error {}", result as u32),
    }
}

/// Makes sure that the driver's library is there: the bindings would panic without it.
fn load() -> Result<(), ModelError> {
    // SAFETY: opening the driver's library runs its initialisers, as for every program that uses the GPU.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let (library, place) = match cfg!(windows) {
        true => ("nvcuda.dll", "the system folder"),
        false => ("libcuda.so.1", "the system's library folders"),
    };
    Err(fault(format!("no NVIDIA driver found: looked for {library} in {place}; install the NVIDIA driver, version 525 or later")))
}

fn start() -> Result<(), ModelError> {
    // SAFETY: the library is loaded; the call has no pointers.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE => Err(fault("the NVIDIA driver is installed but finds no GPU".into())),
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(fault(
            "the library libcuda.so found first is the CUDA toolkit's stub, not the driver's; take the toolkit's `stubs` folder out of the library path".into(),
        )),
        result => check(result, || "starting the NVIDIA driver".into()),
    }
}

fn version() -> Result<i32, ModelError> {
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, || "version of the NVIDIA driver".into())?;
    if version < VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(fault(format!("expected an NVIDIA driver for CUDA 12.0 or later (version 525), found one for CUDA {major}.{minor}")));
    }
    Ok(version)
}

fn device(ordinal: usize) -> Result<sys::CUdevice, ModelError> {
    let (mut count, mut device) = (0, 0);
    // SAFETY: `count` outlives the call.
    check(unsafe { sys::cuDeviceGetCount(&mut count) }, || "number of GPUs".into())?;
    if ordinal >= count as usize {
        return Err(fault(format!("expected GPU number {ordinal}, counted from 0, found {count} in all")));
    }
    // SAFETY: `device` outlives the call.
    check(unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) }, || format!("GPU number {ordinal}"))?;
    Ok(device)
}

fn device_name(device: sys::CUdevice) -> Result<String, ModelError> {
    let mut name = [0; 256];
    // SAFETY: the driver writes at most that many bytes, with a final zero.
    check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) }, || "name of the GPU".into())?;
    // SAFETY: as above.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// The device's primary context, which the process shares, and a stream that does not wait for the default one.
fn context(device: sys::CUdevice, name: &str) -> Result<(sys::CUcontext, sys::CUstream), ModelError> {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: both handles outlive the calls; the context is current when the stream is made, and given back on failure.
    unsafe {
        check(sys::cuDevicePrimaryCtxRetain(&mut context, device), || format!("opening {name}"))?;
        let made = check(sys::cuCtxSetCurrent(context), || format!("selecting {name}"))
            .and_then(|()| check(sys::cuStreamCreate(&mut stream, flags), || format!("a stream of {name}")));
        if made.is_err() {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
        }
        made.map(|()| (context, stream))
    }
}
