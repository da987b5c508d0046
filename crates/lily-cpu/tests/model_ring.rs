//! The model ring: whole models on the CPU device, against transformers and mlx-lm in f32, and against themselves.
//!
//! `cargo test -p lily-cpu --test model_ring -- --nocapture` prints what was measured.

mod rig;

use lily_cpu::{Activations, CpuOptions, Isa};
use lily_testkit::golden::TINY;
use lily_testkit::ring::{Bound, ahead, model};
use rig::Cpu;

/// How far logits may be off. What limits each: f32, the keys and values in half precision (2^-12 of an element) and the
/// order of sums; i16, the rounding of activations to 16 bits in groups of 64 as well; i8, half a percent at every
/// product, and in these random models, whose router knows no preference, other experts at some positions.
fn bound(activations: Activations) -> Bound {
    match activations {
        Activations::F32 => Bound::EveryRow(3e-4),
        Activations::I16 => Bound::EveryRow(1e-3),
        Activations::I8 => Bound::Overall(0.3),
    }
}

#[test]
fn tiny_models_agree_with_other_engines() {
    for name in TINY {
        for isa in Isa::available() {
            for activations in [Activations::F32, Activations::I16, Activations::I8] {
                model::check_golden(&Cpu::with(isa, activations, 2), name, bound(activations));
            }
        }
    }
}

#[test]
fn chunks_change_nothing_but_rounding() {
    // f32: the same sums in another order. i16: where that moves an activation across a rounding boundary, a step of its
    // scale more, which these random models then amplify as they do the rounding itself.
    for (activations, tolerance) in [(Activations::F32, 1e-5), (Activations::I16, 1e-3)] {
        model::check_chunks(&Cpu::with(Isa::best(), activations, 2), &[1, 3, 64, 257], tolerance);
    }
}

#[test]
fn threads_change_nothing_at_all() {
    model::check_equal_bits(&[1, 2, 3, 8].map(|threads| Cpu(CpuOptions::default().with_threads(threads))));
}

#[test]
fn sequences_of_a_batch_do_not_touch_each_other() {
    model::check_batch(&Cpu(CpuOptions::default()), 1e-3); // rows of a pass choose the loops, hence the order of sums
}

#[test]
fn tokens_that_the_host_chooses_can_be_left_to_the_next_pass() {
    ahead::check(&Cpu(CpuOptions::default()), false);
}

#[test]
fn saved_state_and_copied_pages_continue_as_before() {
    model::check_saved_state(&Cpu(CpuOptions::default()));
}

#[test]
fn copies_of_another_size_are_refused() {
    model::check_wrong_copies(&Cpu(CpuOptions::default()));
}
