//! A GPU with the test kernels, for all tests of the CUDA backend; start with [`gpu`].
#![allow(dead_code, reason = "each test file uses its part")]

use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
use lily_gpu::{Access, Backend, Launch, View};
use lily_model::ModelError;

pub struct Gpu {
    pub backend: CudaBackend,
}

/// The GPU with these entries of `cuda_words.metal`, or nothing where there is none, said aloud. With a GPU everything
/// else that is missing is a failure.
pub fn gpu(entries: &[&'static str]) -> Option<Gpu> {
    match Gpu::open(entries, CudaOptions::default()) {
        Ok(gpu) => Some(gpu),
        Err(error) if ["no NVIDIA driver found", "finds no GPU"].iter().any(|reason| error.to_string().contains(reason)) => {
            eprintln!("skips: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

impl Gpu {
    pub fn open(entries: &[&'static str], options: CudaOptions) -> Result<Gpu, ModelError> {
        let kernels = [("cuda_words.metal", include_str!("../cuda_words.metal"))];
        let mut backend = CudaBackend::with_kernels(&kernels, options)?;
        backend.prepare_kernels(entries)?;
        Ok(Gpu { backend })
    }

    pub fn buffer(&mut self, bytes: usize) -> View {
        let buffer = self.backend.allocate(bytes, "test").expect("there is room");
        View { buffer, offset: 0, bytes }
    }

    /// A buffer with these contents.
    pub fn filled(&mut self, contents: &[u8]) -> View {
        let view = self.buffer(contents.len());
        self.backend.write(view, contents);
        view
    }

    /// What a view holds, once all queued work is done.
    pub fn bytes(&mut self, view: View) -> Vec<u8> {
        let mut out = vec![0xa5; view.bytes];
        self.backend.read(view, &mut out).expect("the work went well");
        out
    }
}

pub fn launch(kernel: &'static str, bindings: Vec<(View, Access)>, args: Vec<u8>, grid: [u32; 3], threads: u32) -> Launch {
    Launch { kernel, stage: "test", bindings, args, grid, threads }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}
