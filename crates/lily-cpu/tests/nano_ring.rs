//! The model ring on the bundled model: logits, greedy text and perplexity against mlx-lm in f32.
//!
//! `cargo test -p lily-cpu --test nano_ring -- --nocapture` prints what was measured.

mod rig;

use lily_cpu::{Activations, CpuOptions, Isa};
use lily_testkit::golden::tolerance::{LOGITS_F32, PERPLEXITY};
use lily_testkit::ring::nano;
use rig::Cpu;

#[test]
fn the_bundled_model_agrees_with_mlx() {
    for isa in Isa::available() {
        for activations in [Activations::F32, Activations::I16] {
            let options = CpuOptions::default().with_isa(isa).with_activations(activations);
            nano::check_golden(&Cpu(options), LOGITS_F32);
        }
    }
}

#[test]
fn the_bundled_model_has_the_perplexity_of_mlx() {
    // Both texts whole for the default; their first windows for the others.
    let with = |activations| CpuOptions::default().with_activations(activations);
    nano::check_perplexity(&Cpu(CpuOptions::default()), usize::MAX, PERPLEXITY);
    nano::check_perplexity(&Cpu(with(Activations::F32)), 1, PERPLEXITY);
    nano::check_perplexity(&Cpu(with(Activations::I8)), 4, 3e-3);
}

#[test]
fn the_default_agrees_with_f32_position_by_position() {
    let exact = Cpu(CpuOptions::default().with_activations(Activations::F32));
    nano::agreement(&exact, &Cpu(CpuOptions::default())).assert_within(PERPLEXITY, 0.99);
}

#[test]
fn neither_threads_nor_chunks_change_the_answer() {
    let subjects = [1, 2, 3, 8].map(|threads| Cpu(CpuOptions::default().with_threads(threads)));
    nano::check_same_answers(&subjects, &[1, 3, 16, 64, 320]);
}
