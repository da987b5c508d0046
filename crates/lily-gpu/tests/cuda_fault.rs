//! What becomes of an error inside a kernel. A process of its own: after such an error its GPU context is lost.
#![cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]

mod cuda_rig;

use cuda_rig::{Gpu, gpu, launch};
use lily_gpu::backend::cuda::CudaOptions;
use lily_gpu::commands::CommandList;
use lily_gpu::{Access, Backend};

#[test]
fn a_kernel_that_goes_astray_is_an_error_with_its_name_and_no_crash() {
    if gpu(&[]).is_none() {
        return;
    }
    let options = CudaOptions { step_by_step: true, ..CudaOptions::default() };
    let mut gpu = Gpu::open(&["stray", "square"], options).expect("there is a GPU");
    let x = gpu.buffer(1024);
    let mut list = CommandList::new(false);
    list.push(launch("square", vec![(x, Access::Write)], Vec::new(), [1, 1, 1], 256));
    list.push(launch("stray", vec![(x, Access::Write)], 4096u32.to_le_bytes().to_vec(), [1, 1, 1], 32));
    let prepared = gpu.backend.prepare(&list).expect("nothing has run yet");
    let message = gpu.backend.replay(prepared).expect_err("it writes to 16 TB").to_string();
    for part in ["kernel `stray` of step test", "running the queued work", "CUDA_ERROR_ILLEGAL_ADDRESS"] {
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
    assert!(gpu.backend.wait().is_err(), "the context is lost");
    assert!(gpu.backend.read(x, &mut [0; 16]).is_err());
}
