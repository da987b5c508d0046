//! What the simulator's tests share: kernels of their own, buffers of numbers, lists of one launch.
#![allow(dead_code)]

use std::fs;
use std::path::Path;

use lily_gpu::backend::Backend;
use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator, checked};
use lily_gpu::commands::{Access, CommandList, Launch, View};

/// Compiles a file of this folder.
pub fn simulator(file: &str, is_checked: bool) -> Simulator {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulator");
    checked::load_files(&[file.to_owned()], &read, is_checked, &cache).unwrap_or_else(|fault| panic!("{fault}"))
}

pub fn read(name: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulator");
    fs::read_to_string(folder.join(name.trim_start_matches("lib/"))).ok()
}

pub struct Rig {
    pub backend: SimBackend,
}

impl Rig {
    pub fn new(simulator: Simulator, options: SimOptions) -> Self {
        Rig { backend: SimBackend::new(simulator, options).unwrap() }
    }

    pub fn view(&mut self, what: &str, bytes: usize) -> View {
        let buffer = self.backend.allocate(bytes, what).unwrap();
        View { buffer, offset: 0, bytes }
    }

    pub fn filled(&mut self, what: &str, bytes: &[u8]) -> View {
        let view = self.view(what, bytes.len());
        self.backend.write(view, bytes);
        view
    }

    pub fn floats(&mut self, what: &str, values: &[f32]) -> View {
        self.filled(what, &values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    pub fn read_floats(&mut self, view: View) -> Result<Vec<f32>, String> {
        let mut bytes = vec![0; view.bytes];
        self.backend.read(view, &mut bytes).map_err(|fault| fault.to_string())?;
        Ok(bytes.chunks_exact(4).map(|value| f32::from_ne_bytes(value.try_into().unwrap())).collect())
    }

    /// Runs a list to its end.
    pub fn run(&mut self, launches: Vec<Launch>) -> Result<(), String> {
        let mut list = CommandList::new(false);
        launches.into_iter().for_each(|launch| list.push(launch));
        self.backend.run(&list).and_then(|()| self.backend.wait()).map_err(|fault| fault.to_string())
    }
}

pub fn launch(kernel: &'static str, bindings: Vec<(View, Access)>, args: &[u32], grid: [u32; 3], threads: u32) -> Launch {
    let args = args.iter().flat_map(|field| field.to_ne_bytes()).collect();
    Launch { kernel, stage: "test", bindings, args, grid, threads }
}

/// Numbers between -1 and 1, the same every time.
pub fn numbers(count: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
