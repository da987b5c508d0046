//! What the CUDA backend takes for its own work: compiling, importing, launching. Figures to look at, not to pass;
//! `tools/cuda/run_tests.sh --include-ignored` prints them.
#![cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]

mod cuda_rig;

use std::time::Instant;

use cuda_rig::{Gpu, gpu, launch};
use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
use lily_gpu::commands::CommandList;
use lily_gpu::translate::{Target, translate};
use lily_gpu::{Access, Backend, sources};
use lily_model::Bytes;

#[test]
#[ignore = "prints figures"]
fn every_kernel_of_the_engine_compiles_and_loads() {
    if gpu(&[]).is_none() {
        return;
    }
    let mut entries: Vec<&'static str> = Vec::new();
    for file in sources::files() {
        let kernels = translate(file, &sources::read, Target::Cuda).expect("it is of the language").kernels;
        entries.extend(kernels.into_iter().map(|kernel| &*kernel.name.leak()));
    }
    let cache = tempfile::tempdir().expect("a folder");
    for what in ["compiled", "from the cache"] {
        let mut backend = CudaBackend::new(CudaOptions { cache: Some(cache.path().to_owned()), ..CudaOptions::default() }).expect("a GPU");
        let start = Instant::now();
        backend.prepare_kernels(&entries).expect("all compile");
        println!("{}: {} kernels {what} in {:.2} s", backend.name(), entries.len(), start.elapsed().as_secs_f64());
    }
}

#[test]
#[ignore = "prints figures"]
fn imports_and_reads() {
    let Some(mut gpu) = gpu(&[]) else { return };
    let tensor = Bytes::owned((0..1usize << 30).map(|at| (at >> 8) as u8).collect());
    for round in 0..3 {
        let start = Instant::now();
        for _ in 0..4 {
            gpu.backend.import(&tensor, "a tensor").expect("there is room");
        }
        gpu.backend.wait().expect("it is copied");
        println!("import, round {round}: {:.1} GB/s", (4 * tensor.len()) as f64 / 1e9 / start.elapsed().as_secs_f64());
    }
    for bytes in [4, 1 << 20, 256 << 20] {
        let view = gpu.buffer(bytes);
        let mut out = vec![0; bytes];
        gpu.backend.read(view, &mut out).expect("it reads");
        let start = Instant::now();
        let rounds = if bytes > 1 << 20 { 4 } else { 100 };
        for _ in 0..rounds {
            gpu.backend.read(view, &mut out).expect("it reads");
        }
        let one = start.elapsed().as_secs_f64() / f64::from(rounds);
        println!("read {bytes} bytes: {:.1} us, {:.1} GB/s", one * 1e6, bytes as f64 / 1e9 / one);
    }
}

/// Microseconds a launch, of lists of 500 small launches.
#[test]
#[ignore = "prints figures"]
fn launches() {
    let Some(mut gpu) = gpu(&["square"]) else { return };
    let x = gpu.buffer(1 << 20);
    let list = |apart: bool, serial: bool| {
        let mut list = CommandList::new(serial);
        for at in 0..500 {
            let view = if apart { x.part(at % 4 * 1024, 1024) } else { x.part(0, 1024) };
            list.push(launch("square", vec![(view, Access::Write)], Vec::new(), [1, 1, 1], 256));
        }
        list
    };
    let time = |gpu: &mut Gpu, work: &mut dyn FnMut(&mut Gpu)| {
        work(gpu);
        gpu.backend.wait().expect("it runs");
        let start = Instant::now();
        (0..20).for_each(|_| work(gpu));
        gpu.backend.wait().expect("it runs");
        start.elapsed().as_secs_f64() * 1e6 / 20.0 / 500.0
    };
    for (what, list) in [("one chain", list(false, false)), ("four chains", list(true, false)), ("four chains, serial", list(true, true))] {
        let queued = time(&mut gpu, &mut |gpu| gpu.backend.run(&list).expect("it runs"));
        let start = Instant::now();
        let prepared = gpu.backend.prepare(&list).expect("it makes a graph");
        let made = start.elapsed().as_secs_f64() * 1e3;
        let replayed = time(&mut gpu, &mut |gpu| gpu.backend.replay(prepared).expect("it runs"));
        println!("{what}: queued {queued:.2} us a launch, as a graph {replayed:.2} us ({made:.1} ms to make)");
    }
    let times = gpu.backend.profile(&list(false, false)).expect("it runs");
    let mut sorted: Vec<f32> = times.iter().map(|one| one.microseconds).collect();
    sorted.sort_by(f32::total_cmp);
    println!("profile: median {:.2} us, from {:.2} to {:.2}", sorted[250], sorted[0], sorted[499]);
}
