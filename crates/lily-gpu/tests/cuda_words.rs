//! The words of the kernel language on the GPU of this machine, each against its definition. Skips without a GPU.
#![cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]

mod cuda_rig;

use cuda_rig::{bytes, floats, gpu, launch};
use half::{bf16, f16};
use lily_gpu::commands::CommandList;
use lily_gpu::{Access, Backend};

/// Numbers that are alike at every run, in -1 .. 1.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Rows of halfs as bytes and as what they stand for.
fn halfs(seed: u32, count: usize) -> (Vec<u8>, Vec<f64>) {
    let rounded: Vec<f16> = noise(seed, count).into_iter().map(f16::from_f32).collect();
    (rounded.iter().flat_map(|value| value.to_le_bytes()).collect(), rounded.iter().map(|value| value.to_f64()).collect())
}

#[test]
fn tiles_multiply_scale_and_store() {
    let shapes = [
        ("tile_16_8_16", "tile_kn_16_8_16", [16, 8, 16]),
        ("tile_32_24_48", "tile_kn_32_24_48", [32, 24, 48]),
        ("tile_64_32_64", "tile_kn_64_32_64", [64, 32, 64]),
    ];
    let entries: Vec<&'static str> = shapes.iter().flat_map(|(nk, kn, _)| [*nk, *kn]).collect();
    let Some(mut gpu) = gpu(&entries) else { return };
    for (nk, kn, [m, n, k]) in shapes {
        for (kernel, transposed) in [(nk, false), (kn, true)] {
            // Odd and even rows of the result, tight and padded rows of the operands.
            for (pad, ldo) in [(0, n), (8, n + 9), (8, n + 2)] {
                let ((a, a_values), (b, b_values)) = (halfs(1 + pad, m * k), halfs(2 + pad, n * k));
                let (a, b) = (gpu.filled(&a), gpu.filled(&b));
                let out = gpu.filled(&bytes(&vec![f32::NAN; m * n]));
                let lda = k as u32 + pad;
                let ldb = if transposed { n as u32 + pad } else { lda };
                let args = words(&[lda, ldb, ldo as u32]);
                let mut list = CommandList::new(false);
                list.push(launch(kernel, vec![(a, Access::Read), (b, Access::Read), (out, Access::Write)], args, [1, 1, 1], 32));
                gpu.backend.run(&list).expect("it runs");
                for (at, found) in floats(&gpu.bytes(out)).into_iter().enumerate() {
                    let (row, column) = (at / n, at % n);
                    let b_at = |i: usize| if transposed { b_values[i * n + column] } else { b_values[column * k + i] };
                    let expected = 2.0 * row as f64 * (0..k).map(|i| a_values[row * k + i] * b_at(i)).sum::<f64>();
                    let off = (f64::from(found) - expected).abs();
                    assert!(
                        off <= 1e-4 * (1.0 + expected.abs()),
                        "{kernel}, pad {pad}, row {row}, column {column}: {found} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn warpgroups_multiply_what_lies_in_threadgroup_memory() {
    let Some(mut gpu) = gpu(&[]) else { return };
    if !gpu.backend.has_wgmma() {
        return eprintln!("skips: the GPU has no warpgroups");
    }
    for (kernel, n) in [("warpgroup_words_64", 64), ("warpgroup_words_128", 128)] {
        gpu.backend.prepare_kernels(&[kernel]).expect("it compiles");
        let ((a, a_values), (b, b_values), (v, v_values)) = (halfs(1, 128 * 64), halfs(2, 64 * 64), halfs(3, 64 * n));
        let (a, b, v) = (gpu.filled(&a), gpu.filled(&b), gpu.filled(&v));
        for twice in [0, 1] {
            let scores = gpu.filled(&bytes(&[f32::NAN; 64 * 64]));
            let out = gpu.filled(&bytes(&vec![f32::NAN; 64 * n]));
            let reads = [a, b, v].map(|view| (view, Access::Read));
            let bindings = reads.into_iter().chain([(scores, Access::Write), (out, Access::Write)]).collect();
            let mut list = CommandList::new(false);
            list.push(launch(kernel, bindings, words(&[twice]), [1, 1, 1], 128));
            gpu.backend.run(&list).expect("it runs");
            let dot = |row: usize, other: &dyn Fn(usize) -> f64| (0..64).map(|i| a_values[(64 + row) * 64 + i] * other(i)).sum::<f64>();
            for (at, found) in floats(&gpu.bytes(scores)).into_iter().enumerate() {
                let expected = f64::from(1 + twice) * dot(at / 64, &|i| b_values[at % 64 * 64 + i]);
                assert!((f64::from(found) - expected).abs() <= 1e-3, "{kernel}, score {at}: {found} for {expected}");
            }
            for (at, found) in floats(&gpu.bytes(out)).into_iter().enumerate() {
                let expected = dot(at / n, &|i| v_values[i * n + at % n]);
                assert!((f64::from(found) - expected).abs() <= 1e-3, "{kernel}, sum {at}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn lanes_exchange() {
    let Some(mut gpu) = gpu(&["simdgroup_words"]) else { return };
    let x = noise(3, 32);
    let n: Vec<u32> = (0..32).map(|lane| (lane * 37 + 11) % 64).collect();
    let (input, numbers) = (gpu.filled(&bytes(&x)), gpu.filled(&words(&n)));
    let (out, counts) = (gpu.buffer(8 * 128), gpu.buffer(7 * 128));
    let bindings = vec![(input, Access::Read), (numbers, Access::Read), (out, Access::Write), (counts, Access::Write)];
    let mut list = CommandList::new(false);
    list.push(launch("simdgroup_words", bindings, Vec::new(), [1, 1, 1], 32));
    gpu.backend.run(&list).expect("it runs");

    let sum: f32 = x.iter().sum();
    let before = |lane: usize| x[..lane].iter().sum::<f32>();
    type Word<'a> = &'a dyn Fn(usize) -> f32;
    let floats_expected: [Word; 8] = [
        &|_| sum,
        &|_| x.iter().copied().fold(f32::MIN, f32::max),
        &|_| x.iter().copied().fold(f32::MAX, f32::min),
        &before,
        &|lane| x[lane * 7 % 32],
        &|lane| x[lane ^ 5],
        &|_| x[9],
        &|_| 3.0 * sum,
    ];
    for (at, found) in floats(&gpu.bytes(out)).into_iter().enumerate() {
        let expected = floats_expected[at / 32](at % 32);
        assert!((found - expected).abs() < 1e-5, "float word {}, lane {}: {found} for {expected}", at / 32, at % 32);
    }
    let numbers_expected: [&dyn Fn(usize) -> u32; 7] = [
        &|_| n.iter().sum(),
        &|_| *n.iter().max().expect("32"),
        &|_| *n.iter().min().expect("32"),
        &|lane| n[..lane].iter().sum(),
        &|lane| if lane < 3 { 0 } else { n[lane - 3] },
        &|lane| if lane > 28 { 0 } else { n[lane + 3] },
        &|lane| n[lane ^ 1],
    ];
    for (at, found) in gpu.bytes(counts).chunks_exact(4).enumerate() {
        let found = u32::from_le_bytes(found.try_into().expect("four bytes"));
        assert_eq!(found, numbers_expected[at / 32](at % 32), "number word {}, lane {}", at / 32, at % 32);
    }
}

#[test]
fn mathematics_is_as_exact_as_promised() {
    let Some(mut gpu) = gpu(&["mathematics"]) else { return };
    // The softmax's range, then both signs, then values that tie when rounded to 16 bits.
    let mut x: Vec<f32> = (0..8192).map(|at| -80.0 * at as f32 / 8192.0 - 1e-6).collect();
    x.extend(noise(4, 4096).iter().map(|value| value * 20.0 + 1e-3));
    x.extend((0..2048u32).map(|at| f32::from_bits(0x3f80_0000 + (at << 12))));
    let input = gpu.filled(&bytes(&x));
    let out = gpu.buffer(10 * x.len() * 4);
    let groups = x.len().div_ceil(256) as u32;
    let mut list = CommandList::new(false);
    list.push(launch("mathematics", vec![(input, Access::Read), (out, Access::Write)], words(&[x.len() as u32]), [groups, 1, 1], 256));
    gpu.backend.run(&list).expect("it runs");
    let found = floats(&gpu.bytes(out));

    let ulp = f64::from(f32::EPSILON);
    // Name, definition, relative error in units in the last place. (`bf16::from_f64` would round twice.)
    type Row<'a> = (&'a str, &'a dyn Fn(f64) -> f64, f64);
    let rows: [Row; 10] = [
        ("exp", &f64::exp, 2.0),
        ("log", &|v| v.abs().ln(), 2.0),
        ("sqrt", &|v| v.abs().sqrt(), 0.5),
        ("rsqrt", &|v| 1.0 / v.abs().sqrt(), 2.0),
        ("division", &|v| 3.0 / v, 0.5),
        ("bfloat", &|v| bf16::from_f32(v as f32).to_f64(), 0.0),
        ("half", &|v| f16::from_f32(v as f32).to_f64(), 0.0),
        ("clamp", &|v| v.clamp(-1.0, if v > 10.0 { 2.0 } else { 1.0 }), 0.0),
        ("dot", &|v| 2.0 * (v + 6.0) + v.max(1.0), f64::INFINITY),
        ("exp2", &f64::exp2, 2.0),
    ];
    for (row, (name, definition, limit)) in rows.into_iter().enumerate() {
        let mut worst = (0.0, 0.0);
        for (&v, &found) in x.iter().zip(&found[row * x.len()..]) {
            let expected = definition(f64::from(v));
            let off = (f64::from(found) - expected).abs() / (ulp * expected.abs()).max(f64::from(f32::MIN_POSITIVE));
            if name == "dot" {
                assert!((f64::from(found) - expected).abs() < 1e-4, "dot of {v}: {found} for {expected}");
            } else if off > worst.0 || off.is_nan() {
                worst = (off, v);
            }
        }
        eprintln!("{name}: at most {:.2} units in the last place off, at {}", worst.0, worst.1);
        assert!(worst.0 <= limit + 0.01, "{name}: {} units off at {}", worst.0, worst.1);
    }
}

#[test]
fn atomics_count() {
    let Some(mut gpu) = gpu(&["histogram"]) else { return };
    let x: Vec<u32> = noise(5, 10_000).iter().map(|value| (value * value * 16.0) as u32).collect();
    let input = gpu.filled(&words(&x));
    let counts = gpu.buffer(64);
    let mut list = CommandList::new(false);
    list.push(launch("histogram", vec![(input, Access::Read), (counts, Access::Write)], words(&[x.len() as u32]), [7, 1, 1], 96));
    gpu.backend.run(&list).expect("it runs");
    let mut expected = [0u32; 16];
    x.iter().for_each(|&value| expected[value as usize % 16] += 1);
    assert_eq!(gpu.bytes(counts), words(&expected));
}

#[test]
fn bytes_become_codes() {
    let Some(mut gpu) = gpu(&["codes"]) else { return };
    let x: Vec<u32> = (0..32u32).map(|at| at.wrapping_mul(2_654_435_761).rotate_left(at)).collect();
    let (input, out) = (gpu.filled(&words(&x)), gpu.buffer(6 * 128));
    let mut list = CommandList::new(false);
    list.push(launch("codes", vec![(input, Access::Read), (out, Access::Write)], Vec::new(), [1, 1, 1], 32));
    gpu.backend.run(&list).expect("it runs");
    let half = |code: u32| u32::from(f16::from_f32(3.0 * code as f32 - 5.0).to_bits());
    let finite = |value: f32| u32::from(f16::from_f32(value.clamp(-65504.0, 65504.0)).to_bits());
    for (at, found) in gpu.bytes(out).chunks_exact(4).enumerate() {
        let found = u32::from_le_bytes(found.try_into().expect("four bytes"));
        let (word, other) = (x[at % 32], x[31 - at % 32]);
        let expected = match at / 32 {
            4 => u32::from_le_bytes([other.to_le_bytes()[1], word.to_le_bytes()[1], other.to_le_bytes()[3], word.to_le_bytes()[3]]),
            5 => finite((word >> (at % 32)) as f32) | finite(-(word as f32)) << 16,
            byte => half(word >> (8 * byte) & 15) | half(word >> (8 * byte + 4) & 15) << 16,
        };
        assert_eq!(found, expected, "word {}, lane {}", at / 32, at % 32);
    }
}
