//! The simulator runs the words of the kernel language as a GPU does: both builds, both lane orders, several threads.

#![cfg(all(feature = "sim", unix))]

#[path = "simulator/rig.rs"]
mod rig;

use half::f16;
use lily_gpu::backend::Backend;
use lily_gpu::backend::sim::{SimOptions, Simulator};
use lily_gpu::commands::Access::{Read, Write};
use rig::{Rig, launch, numbers, simulator};

/// Runs `test` on every build and order.
fn everywhere(mut test: impl FnMut(Rig)) {
    for checked in [false, true] {
        let simulator = simulator("words.metal", checked);
        for reverse_lanes in [false, true] {
            for threads in [1, 3] {
                let options = SimOptions { reverse_lanes, threads, poison_buffers: true, timeout_s: 0, ..SimOptions::default() };
                test(Rig::new(simulator, options));
            }
        }
    }
}

fn halfs(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let rounded: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
    (rounded.iter().flat_map(|value| value.to_ne_bytes()).collect(), rounded.iter().map(|value| value.to_f32()).collect())
}

#[test]
fn template_entries_sum_rows() {
    let x = numbers(7 * 320, 1);
    everywhere(|mut rig| {
        let (input, out) = (rig.floats("x", &x), rig.view("out", 7 * 4));
        let args = [320, 0.5f32.to_bits()];
        for (kernel, squared) in [("row_sum_1", false), ("row_sum_4_squared", true)] {
            rig.run(vec![launch(kernel, vec![(input, Read), (out, Write)], &args, [7, 1, 1], 96)]).unwrap();
            let found = rig.read_floats(out).unwrap();
            for (row, found) in found.iter().enumerate() {
                let values = x[row * 320..][..320].iter().map(|&value| f64::from(value));
                let expected: f64 = values.map(|value| if squared { value * value } else { value }).sum::<f64>() * 0.5;
                assert!((f64::from(*found) - expected).abs() < 1e-4, "{kernel} row {row}: expected {expected}, found {found}");
            }
        }
    });
}

#[test]
fn tiles_multiply_scale_and_store() {
    let (a_bytes, a) = halfs(&numbers(32 * 32, 2));
    let (b_bytes, b) = halfs(&numbers(24 * 32, 3));
    let (c_bytes, c) = halfs(&numbers(32 * 24, 4));
    let scale = numbers(32, 5);
    everywhere(|mut rig| {
        let bindings = vec![
            (rig.filled("a", &a_bytes), Read),
            (rig.filled("b", &b_bytes), Read),
            (rig.filled("c", &c_bytes), Read),
            (rig.floats("scale", &scale), Read),
            (rig.view("out", 32 * 24 * 4), Write),
        ];
        let out = bindings[4].0;
        rig.run(vec![launch("tile", bindings, &[32, 32, 24], [1, 1, 1], 32)]).unwrap();
        for (at, found) in rig.read_floats(out).unwrap().into_iter().enumerate() {
            let (row, column) = (at / 24, at % 24);
            let product = |other: &dyn Fn(usize) -> f32| (0..32).map(|k| f64::from(a[row * 32 + k]) * f64::from(other(k))).sum::<f64>();
            let expected = f64::from(scale[row]) * product(&|k| b[column * 32 + k]) + product(&|k| c[k * 24 + column]);
            assert!((f64::from(found) - expected).abs() < 1e-4, "row {row}, column {column}: expected {expected}, found {found}");
        }
    });
}

#[test]
fn lanes_exchange_values() {
    let x: Vec<u32> = (0..32).map(|lane| lane * lane * 77 % 1000 + 1).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let sums = |end: usize| x[..end].iter().sum::<u32>();
    let expected = |lane: usize| {
        [
            sums(32),
            *x.iter().max().unwrap(),
            *x.iter().min().unwrap(),
            x[lane * 5 % 32],
            x[lane ^ 12],
            if lane < 3 { x[lane] } else { x[lane - 3] },
            if lane > 27 { x[lane] } else { x[lane + 4] },
            x[7],
            sums(lane),
            u32::from(f16::from_f32(f32::from_bits(x[lane])).to_bits()) | 0x3c00 << 16,
        ]
    };
    everywhere(|mut rig| {
        let (input, out) = (rig.filled("x", &bytes), rig.view("out", 6 * 320 * 4));
        let count = rig.filled("count", &[0; 8]);
        rig.run(vec![launch("lanes", vec![(input, Read), (out, Write), (count, Write)], &[], [3, 2, 1], 32)]).unwrap();
        let found: Vec<u32> = rig.read_floats(out).unwrap().into_iter().map(f32::to_bits).collect();
        for (at, &found) in found.iter().enumerate() {
            let (operation, lane) = (at / 32 % 10, at % 32);
            assert_eq!(found, expected(lane)[operation], "operation {operation}, lane {lane}");
        }
        let counts: Vec<u32> = rig.read_floats(count).unwrap().into_iter().map(f32::to_bits).collect();
        assert_eq!(counts, [4 * sums(32), 2 * sums(32)]);
    });
}

#[test]
fn the_kernels_of_this_build_are_known_by_name() {
    let norm = Simulator::built_in().kernel("norm").expect("kernels/norm.metal has an entry `norm`");
    assert!(norm.buffers.iter().any(|buffer| buffer.writable), "{norm:?}");
    assert!(Rig::new(Simulator::built_in(), SimOptions::default()).backend.name().contains("simulator (1 thread)"));
}
