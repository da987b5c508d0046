//! Which device a command computes on: the choice of the command line, opened.

use anyhow::bail;
use lily_cpu::{Activations, CpuDevice, CpuOptions};
use lily_gpu::GpuDevice;
use lily_gpu::backend::Backend;
#[cfg(any(target_os = "linux", target_os = "windows"))]
use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
#[cfg(target_os = "macos")]
use lily_gpu::backend::metal::MetalBackend;
#[cfg(unix)]
use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator};
use lily_gpu::options::GpuOptions;
use lily_model::{Capacity, Device, ModelConfig, Weights};

#[cfg(any(target_os = "linux", target_os = "windows"))]
use crate::cli::kernel_cache;
use crate::cli::{ActivationsChoice, DeviceChoice, ModelArgs};

/// What a device needs to be opened.
pub struct Opening<'a> {
    pub config: &'a ModelConfig,
    pub weights: &'a Weights,
    /// What to allocate.
    pub capacity: Capacity,
    pub gpu: GpuOptions,
}

/// What to do with the device, whichever it is.
pub trait Use {
    type Output;

    fn cpu(self, device: CpuDevice) -> anyhow::Result<Self::Output>;
    fn gpu<B: Backend + 'static>(self, device: GpuDevice<B>) -> anyhow::Result<Self::Output>;
}

/// Opens the device that the flags name and hands it over. `auto` is the first that is there: Metal on a Mac, CUDA where
/// an NVIDIA driver is, the processor.
pub fn open<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    match args.device {
        DeviceChoice::Cpu => cpu(args, opening, user),
        DeviceChoice::Sim => sim(args, opening, user),
        DeviceChoice::Cuda => cuda(opening, user),
        DeviceChoice::Metal => metal(opening, user),
        DeviceChoice::Auto => auto(args, opening, user),
    }
}

fn cpu<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    let options = CpuOptions { threads: args.threads.map(usize::from), ..CpuOptions::default() };
    let options = match args.activations {
        None => options,
        Some(ActivationsChoice::F32) => options.with_activations(Activations::F32),
        Some(ActivationsChoice::I16) => options.with_activations(Activations::I16),
        Some(ActivationsChoice::I8) => options.with_activations(Activations::I8),
    };
    user.cpu(CpuDevice::new(opening.config, opening.weights, opening.capacity, options)?)
}

fn gpu<B: Backend + 'static, U: Use>(backend: B, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    let Opening { config, weights, capacity, gpu } = *opening;
    user.gpu(GpuDevice::new(backend, config, weights, capacity, gpu)?)
}

#[cfg(unix)]
fn sim<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    let threads = args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let options = SimOptions { threads, poison_threadgroup: false, ..SimOptions::default() };
    gpu(SimBackend::new(Simulator::built_in(), options)?, opening, user)
}

#[cfg(not(unix))]
fn sim<U: Use>(_args: &ModelArgs, _opening: &Opening<'_>, _user: U) -> anyhow::Result<U::Output> {
    bail!("--device sim: the simulator runs on Linux and macOS")
}

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn cuda_options() -> CudaOptions {
    CudaOptions { cache: kernel_cache(), ..CudaOptions::default() }
}

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn cuda<U: Use>(opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    gpu(CudaBackend::new(cuda_options())?, opening, user)
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
fn cuda<U: Use>(_opening: &Opening<'_>, _user: U) -> anyhow::Result<U::Output> {
    bail!("--device cuda: NVIDIA GPUs are used on Linux and Windows; this system has Metal")
}

#[cfg(target_os = "macos")]
fn metal<U: Use>(opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    gpu(MetalBackend::new()?, opening, user)
}

#[cfg(not(target_os = "macos"))]
fn metal<U: Use>(_opening: &Opening<'_>, _user: U) -> anyhow::Result<U::Output> {
    bail!("--device metal: Metal is part of macOS, which this is not")
}

#[cfg(target_os = "macos")]
fn auto<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    match MetalBackend::new() {
        Ok(backend) => gpu(backend, opening, user),
        Err(error) => {
            tracing::warn!(%error, "Metal cannot be used: computing on the processor");
            cpu(args, opening, user)
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn auto<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    match CudaBackend::new(cuda_options()) {
        Ok(backend) => gpu(backend, opening, user),
        Err(error) => {
            tracing::debug!(%error, "no NVIDIA GPU can be used: computing on the processor");
            cpu(args, opening, user)
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "macos")))]
fn auto<U: Use>(args: &ModelArgs, opening: &Opening<'_>, user: U) -> anyhow::Result<U::Output> {
    cpu(args, opening, user)
}

/// Wraps a device that only the trait's methods of [`Device`] are wanted of.
pub trait UseAny {
    type Output;

    fn any<D: Device<Buffer: Send> + 'static>(self, device: D) -> anyhow::Result<Self::Output>;
}

/// A [`UseAny`] as a [`Use`].
pub struct Any<U>(pub U);

impl<U: UseAny> Use for Any<U> {
    type Output = U::Output;

    fn cpu(self, device: CpuDevice) -> anyhow::Result<U::Output> {
        self.0.any(device)
    }

    fn gpu<B: Backend + 'static>(self, device: GpuDevice<B>) -> anyhow::Result<U::Output> {
        self.0.any(device)
    }
}
