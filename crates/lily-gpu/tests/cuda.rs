//! The CUDA backend on the GPU of this machine, and what it says where there is none.
//!
//! Without a GPU every test but the last says that it skips. `tools/cuda/run_tests.sh` runs them on a machine with one.
#![cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]

mod cuda_rig;

use cuda_rig::{Gpu, bytes, floats, gpu, launch};
use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
use lily_gpu::backend::{PENDING_BYTES, PENDING_MAX};
use lily_gpu::commands::CommandList;
use lily_gpu::{Access, Backend, Launch, View};
use lily_model::Bytes;

/// `to = a + b * factor`, over all of `to`.
fn add(a: View, b: View, to: View, factor: f32) -> Launch {
    let count = (to.bytes / 4) as u32;
    let args = [count.to_le_bytes(), factor.to_le_bytes()].concat();
    let bindings = vec![(a, Access::Read), (b, Access::Read), (to, Access::Write)];
    launch("add", bindings, args, [count.div_ceil(256), 1, 1], 256)
}

/// `x = x * x` in place.
fn square(x: View) -> Launch {
    launch("square", vec![(x, Access::Write)], Vec::new(), [(x.bytes / 1024) as u32, 1, 1], 256)
}

const COUNT: usize = 1024;

#[test]
fn bytes_come_back_as_they_were_written() {
    let Some(mut gpu) = gpu(&[]) else { return };
    let whole = gpu.buffer(3 << 20);
    assert!(gpu.bytes(whole).iter().all(|&byte| byte == 0), "buffers start as zeros");
    // Larger than all slots of the staging ring together, so that each is used again.
    let large = gpu.buffer(21 << 20);
    let pattern: Vec<u8> = (0..large.bytes).map(|at| (at * 31 % 253) as u8).collect();
    gpu.backend.write(large, &pattern);
    assert!(gpu.bytes(large) == pattern);
    // Many small writes share a slot; later ones win.
    for at in 0..5000 {
        gpu.backend.write(whole.part(at * 12, 16), &[at as u8; 16]);
    }
    let found = gpu.bytes(whole);
    assert!((0..5000).all(|at| found[at * 12..at * 12 + 12] == [at as u8; 12]));
    gpu.backend.copy(whole.part(0, 6000), whole.part(1 << 20, 6000));
    gpu.backend.clear(whole.part(100, 200));
    let after = gpu.bytes(whole);
    assert!(after[1 << 20..(1 << 20) + 6000] == found[..6000]);
    assert!(after[100..300].iter().all(|&byte| byte == 0) && after[..100] == found[..100] && after[300..6000] == found[300..6000]);
}

#[test]
fn imported_tensors_are_whole_and_aligned() {
    let Some(mut gpu) = gpu(&[]) else { return };
    for bytes in [1, 1000, 150 << 20] {
        let pattern: Vec<u8> = (0..bytes).map(|at: usize| (at * 7 % 251) as u8).collect();
        let view = gpu.backend.import(&Bytes::owned(pattern.clone()), "a tensor").expect("there is room");
        assert_eq!((view.offset % 16, view.bytes), (0, bytes));
        assert!(gpu.bytes(view) == pattern, "{bytes} bytes");
    }
}

/// `a -> b, c -> d`, where `b` and `c` may run at once, then a chain in place.
fn diamond(gpu: &mut Gpu, serial: bool) -> (CommandList, View, Vec<f32>) {
    let [a, b, c, d] = [(); 4].map(|()| gpu.buffer(COUNT * 4));
    let values: Vec<f32> = (0..COUNT).map(|at| at as f32 / 64.0).collect();
    gpu.backend.write(a, &bytes(&values));
    let mut list = CommandList::new(serial);
    list.push(add(a, a, b, 1.0));
    list.push(add(a, a, c, 2.0));
    list.push(add(b, c, d, 3.0));
    list.push(square(d.part(0, COUNT * 4)));
    list.push(add(d, b, a, -0.5));
    let expected = values.iter().map(|x| (11.0 * x) * (11.0 * x) - x).collect();
    (list, a, expected)
}

#[test]
fn a_list_runs_in_the_order_of_its_dependencies() {
    let Some(mut gpu) = gpu(&["add", "square"]) else { return };
    for serial in [true, false] {
        let (list, out, expected) = diamond(&mut gpu, serial);
        gpu.backend.run(&list).expect("it runs");
        assert_eq!(floats(&gpu.bytes(out)), expected, "launch by launch, serial: {serial}");

        let (list, out, expected) = diamond(&mut gpu, serial);
        let prepared = gpu.backend.prepare(&list).expect("it makes a graph");
        assert_ne!(floats(&gpu.bytes(out)), expected, "preparing runs nothing");
        gpu.backend.replay(prepared).expect("it runs");
        assert_eq!(floats(&gpu.bytes(out)), expected, "as a graph, serial: {serial}");
    }
}

#[test]
fn a_graph_replays_on_what_the_buffers_hold_then() {
    let Some(mut gpu) = gpu(&["add"]) else { return };
    let (x, one) = (gpu.buffer(COUNT * 4), gpu.buffer(COUNT * 4));
    let sum = gpu.buffer(COUNT * 4);
    gpu.backend.write(one, &bytes(&[1.0; COUNT]));
    let mut list = CommandList::new(false);
    list.push(add(x, one, sum, 1.0));
    list.push(add(sum, one, x, 1.0));
    let prepared = gpu.backend.prepare(&list).expect("it makes a graph");
    for _ in 0..100 {
        gpu.backend.replay(prepared).expect("it runs");
    }
    assert_eq!(floats(&gpu.bytes(x)), [200.0; COUNT]);
    gpu.backend.write(x, &bytes(&[7.0; COUNT]));
    gpu.backend.replay(prepared).expect("it runs");
    assert_eq!(floats(&gpu.bytes(x)), [9.0; COUNT]);
    let empty = gpu.backend.prepare(&CommandList::new(false)).expect("nothing to do is no error");
    gpu.backend.replay(empty).expect("it runs");
    gpu.backend.wait().expect("nothing went wrong");
}

#[test]
fn a_read_waits_for_what_came_before_it_and_sees_nothing_after() {
    let Some(mut gpu) = gpu(&["add"]) else { return };
    let (x, one) = (gpu.filled(&bytes(&[0.0; COUNT])), gpu.filled(&bytes(&[1.0; COUNT])));
    let sum = gpu.buffer(COUNT * 4);
    let mut list = CommandList::new(false);
    list.push(add(x, one, sum, 1.0));
    list.push(add(sum, one, x, 1.0));
    let prepared = gpu.backend.prepare(&list).expect("it makes a graph");
    let mut reads = Vec::new();
    for _ in 0..PENDING_MAX + 2 {
        gpu.backend.replay(prepared).expect("it runs");
        reads.push(gpu.backend.read_later(x.part(400, PENDING_BYTES.min(80))));
    }
    for (at, pending) in reads.into_iter().enumerate().rev() {
        match gpu.backend.collect(pending) {
            Ok(found) => assert_eq!(floats(&found), [2.0 * (at + 1) as f32; 20]),
            // Two came too many before the host looked.
            Err(error) => assert!(at < 2 && error.to_string().contains("expected one of the last 8 of 10 reads, found number"), "{error}"),
        }
    }
    let large = gpu.buffer(PENDING_BYTES + 4);
    let refused = gpu.backend.read_later(large);
    let error = gpu.backend.collect(refused).expect_err("it is too large for a slot");
    assert!(error.to_string().contains("expected a read of at most 4096 bytes, found 4100"), "{error}");
    // A fault that no call could report is that of the next read.
    gpu.backend.copy(View { offset: 1 << 20, ..x }, sum);
    let failed = gpu.backend.read_later(x.part(0, 4));
    let error = gpu.backend.collect(failed).expect_err("the copy began outside its buffer");
    assert!(error.to_string().contains("expected a view inside"), "{error}");
    gpu.backend.wait().expect("it was reported once");
}

#[test]
fn a_profile_names_every_launch_and_its_time() {
    let Some(mut gpu) = gpu(&["add", "square"]) else { return };
    let (list, out, expected) = diamond(&mut gpu, false);
    let times = gpu.backend.profile(&list).expect("it runs");
    let kernels: Vec<&str> = times.iter().map(|one| one.kernel).collect();
    assert_eq!(kernels, ["add", "add", "add", "square", "add"]);
    assert!(times.iter().all(|one| one.stage == "test" && one.microseconds > 0.0), "{times:?}");
    assert_eq!(floats(&gpu.bytes(out)), expected);
}

#[test]
fn what_cannot_be_launched_is_refused_by_name() {
    let Some(mut gpu) = gpu(&["add", "square"]) else { return };
    let x = gpu.buffer(COUNT * 4);
    let good = square(x);
    let refused = |gpu: &mut Gpu, launch: Launch, parts: &[&str]| {
        let mut list = CommandList::new(false);
        list.push(launch);
        let by_run = gpu.backend.run(&list).expect_err("it is wrong").to_string();
        let by_graph = gpu.backend.prepare(&list).expect_err("it is wrong").to_string();
        assert_eq!(by_run, by_graph);
        assert!(parts.iter().all(|part| by_run.contains(part)), "{by_run:?} should contain {parts:?}");
    };
    refused(&mut gpu, Launch { kernel: "histogram", ..good.clone() }, &["`histogram`", "not prepared"]);
    refused(&mut gpu, Launch { args: vec![0; 4], ..good.clone() }, &["`square`", "step test", "expected none"]);
    refused(&mut gpu, Launch { bindings: Vec::new(), ..good.clone() }, &["`square`", "expected 1 buffers, found 0"]);
    refused(&mut gpu, Launch { threads: 2048, ..good.clone() }, &["`square`", "at most 1024 threads"]);
    let outside = View { offset: COUNT * 4 - 16, ..x };
    refused(&mut gpu, Launch { bindings: vec![(outside, Access::Write)], ..good }, &["`square`", "inside 4096 bytes", "at 4080"]);
    assert!(gpu.backend.prepare_kernels(&["no_such"]).expect_err("there is none").to_string().contains("`no_such`"));

    // Calls that report nothing leave their error to the next waiting one, once.
    gpu.backend.write(outside, &[1; 4096]);
    let later = gpu.backend.wait().expect_err("the write was wrong").to_string();
    assert!(later.contains("inside 4096 bytes"), "{later:?}");
    gpu.backend.wait().expect("it was reported");
}

#[test]
fn too_large_a_buffer_says_what_is_free() {
    let Some(mut gpu) = gpu(&[]) else { return };
    let budget = gpu.backend.memory().expect("it is known");
    assert!(budget > 1 << 30, "{budget} bytes");
    let message = gpu.backend.allocate(1 << 46, "everything").expect_err("no GPU has it").to_string();
    for part in ["everything", "expected 70368.7 GB", "found", "GB of", "taken"] {
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
    gpu.buffer(1 << 20);
}

#[test]
fn compiled_kernels_are_kept_and_used_again() {
    if gpu(&[]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let kept = || std::fs::read_dir(folder.path()).expect("it is there").map(|one| one.expect("a file").path()).collect::<Vec<_>>();
    let open = || Gpu::open(&["square"], CudaOptions { cache: Some(folder.path().to_owned()), ..CudaOptions::default() });
    open().expect("it compiles");
    let files = kept();
    assert_eq!(files.len(), 1, "{files:?}");
    let mut again = open().expect("it loads");
    assert_eq!(kept(), files, "nothing was compiled anew");
    let x = again.buffer(COUNT * 4);
    again.backend.write(x, &bytes(&[3.0; COUNT]));
    let mut list = CommandList::new(false);
    list.push(square(x));
    again.backend.run(&list).expect("it runs");
    assert_eq!(floats(&again.bytes(x)), [9.0; COUNT]);
    drop(again);
    // A broken file is made anew.
    let whole = std::fs::read(&files[0]).expect("it is ours");
    std::fs::write(&files[0], &whole[..whole.len() / 2]).expect("it is ours");
    open().expect("it compiles again");
    assert!(std::fs::read(&files[0]).expect("it is there") == whole);
}

#[test]
fn without_a_driver_the_message_says_what_to_do() {
    let message = match CudaBackend::new(CudaOptions::default()) {
        Ok(backend) => return assert!(backend.name().starts_with("cuda (")),
        Err(error) => error.to_string(),
    };
    assert!(message.starts_with("device: cuda: "), "{message:?}");
    let missing_driver = message.contains("no NVIDIA driver found: looked for") && message.contains("install the NVIDIA driver");
    let missing_device = message.contains("finds no GPU") || message.contains("stub");
    assert!(missing_driver || missing_device, "{message:?}");
}
