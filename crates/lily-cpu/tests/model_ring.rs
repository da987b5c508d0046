//! The model ring: whole models on the CPU device, against transformers and mlx-lm in f32, and against themselves.
//!
//! `cargo test -p lily-cpu --test model_ring -- --nocapture` prints what was measured.

mod rig;

use lily_cpu::{Activations, CpuOptions, Isa};
use lily_model::{Device, Logits, Page};
use lily_testkit::generate::Rng;
use lily_testkit::golden::{Golden, TINY, compare, worst_row};
use rig::{Sequence, open, rows, run};

/// Relative error of a row of logits. What limits each: f32, the keys and values in half precision (2^-12 of an
/// element) and the order of sums; i16, the rounding of activations to 16 bits in groups of 64 as well.
fn tolerance(activations: Activations) -> f64 {
    if activations == Activations::F32 { 3e-4 } else { 1e-3 }
}

/// Relative error over all logits with 8-bit activations: half a percent at every product, and in these random models,
/// whose router knows no preference, other experts at some positions.
const I8_TOLERANCE: f64 = 0.3;

fn options(isa: Isa, activations: Activations) -> CpuOptions {
    CpuOptions::default().with_isa(isa).with_activations(activations).with_threads(2)
}

/// The logits of every sequence of a golden, and the greedy continuations.
fn check(name: &str, isa: Isa, activations: Activations) {
    let golden = Golden::load(name).expect("the golden loads");
    let mut runner = open(name, options(isa, activations));
    let vocab = runner.config.vocab;
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let mut ours = Sequence::start(&mut runner, 1, &[3, 0, 2]);
        let logits = ours.feed(&mut runner, &sequence.tokens, 320);
        let mut error = 0.0f64;
        for engine in ["mlx", "transformers"] {
            let tensor = format!("sequences.{index}.logits.{engine}");
            if engine == "transformers" && !golden.has(&tensor) {
                continue;
            }
            let (label, expected) = (format!("{name} {isa} {activations:?} {tensor}"), golden.tensor(&tensor));
            println!("{}", compare(&label, &logits, expected));
            if activations == Activations::I8 {
                compare(&label, &logits, expected).assert_within(I8_TOLERANCE);
                continue;
            }
            let worst = worst_row(&label, &logits, expected, vocab);
            println!("{worst}");
            worst.assert_within(tolerance(activations));
            error = error.max(worst.max_abs);
        }
        if activations == Activations::I8 {
            continue;
        }
        let tokens = ours.greedy(&mut runner, &logits, sequence.mlx.tokens.len());
        let compared = sequence.mlx.assert_followed(&format!("{name} {isa} {activations:?}"), &tokens, error);
        println!("{name} {isa} {activations:?} sequence {index}: {compared} of {} greedy tokens equal", tokens.len());
    }
}

#[test]
fn tiny_models_agree_with_other_engines() {
    for name in TINY {
        for isa in Isa::available() {
            for activations in [Activations::F32, Activations::I16, Activations::I8] {
                check(name, isa, activations);
            }
        }
    }
}

fn prompt(length: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.below(vocab) as u32).collect()
}

#[test]
fn chunks_change_nothing_but_rounding() {
    for activations in [Activations::F32, Activations::I16] {
        let mut runner = open("base", options(Isa::best(), activations));
        let vocab = runner.config.vocab;
        let tokens = prompt(300, vocab, 5);
        let whole = Sequence::start(&mut runner, 0, &[0, 1]).feed(&mut runner, &tokens, 320);
        for chunk in [1, 3, 64, 257] {
            let chunked = Sequence::start(&mut runner, 1, &[7, 4]).feed(&mut runner, &tokens, chunk);
            let label = format!("{activations:?}, chunks of {chunk}");
            println!("{}", compare(&label, &chunked, &whole));
            let worst = worst_row(&label, &chunked, &whole, vocab);
            println!("{worst}");
            // f32: the same sums in another order. i16: where that moves an activation across a rounding boundary, a
            // step of its scale more, which these random models then amplify as they do the rounding itself.
            worst.assert_within(if activations == Activations::F32 { 1e-5 } else { 1e-3 });
        }
    }
}

#[test]
fn threads_change_nothing_at_all() {
    let golden = Golden::load("base").expect("the golden loads");
    let tokens = &golden.sequences[0].tokens;
    let outcomes = [1, 2, 3, 8].map(|threads| {
        let mut runner = open("base", CpuOptions::default().with_threads(threads));
        let mut sequence = Sequence::start(&mut runner, 0, &[2, 1]);
        let logits = sequence.feed(&mut runner, tokens, 37);
        let greedy = sequence.greedy(&mut runner, &logits, 40);
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        (bits, greedy, runner.device.state_save(sequence.slot))
    });
    for (outcome, threads) in outcomes[1..].iter().zip([2, 3, 8]) {
        assert!(outcome.0 == outcomes[0].0, "logits of {threads} threads differ from those of one");
        assert_eq!(outcome.1, outcomes[0].1, "greedy tokens of {threads} threads");
        assert!(outcome.2 == outcomes[0].2, "state of {threads} threads differs from that of one");
    }
}

#[test]
fn sequences_of_a_batch_do_not_touch_each_other() {
    let mut runner = open("base", CpuOptions::default());
    let vocab = runner.config.vocab;
    let prompts = [prompt(21, vocab, 1), prompt(1, vocab, 2), prompt(270, vocab, 3)];
    let pages: [&[u32]; 3] = [&[5], &[9], &[11, 2]];
    let mut alone = Vec::new();
    for (prompt, pages) in prompts.iter().zip(pages) {
        let mut sequence = Sequence::start(&mut runner, 3, pages);
        let mut logits = sequence.feed(&mut runner, prompt, 320);
        logits.extend(sequence.feed(&mut runner, &[7], 1));
        alone.push(logits);
    }
    let mut sequences: Vec<Sequence> = (0..3).map(|at| Sequence::start(&mut runner, 2 - at as u32, pages[at])).collect();
    let mut together = vec![Vec::new(); 3];
    // Prefill and decode mixed: the second sequence decodes while the others prefill, then all decode.
    for step in [[&prompts[0][..], &prompts[1], &prompts[2]], [&[7], &[7], &[7]]] {
        let spans: Vec<_> = sequences.iter().zip(step).map(|(sequence, tokens)| sequence.span(tokens, Logits::All)).collect();
        run(&mut runner, &spans);
        let mut first = 0;
        for (at, tokens) in step.iter().enumerate() {
            together[at].extend(rows(&runner, first..first + tokens.len()));
            sequences[at].position += tokens.len();
            first += tokens.len();
        }
    }
    for (at, (together, alone)) in together.iter().zip(&alone).enumerate() {
        let worst = worst_row(&format!("sequence {at} in a batch"), together, alone, vocab);
        println!("{worst}");
        worst.assert_within(1e-3); // rows of a pass choose the loops, hence the order of sums: see above
    }
}

#[test]
fn saved_state_and_copied_pages_continue_as_before() {
    let mut runner = open("base", CpuOptions::default());
    let vocab = runner.config.vocab;
    let (head, tail) = (prompt(260, vocab, 8), prompt(12, vocab, 9));
    let mut sequence = Sequence::start(&mut runner, 0, &[4, 6]);
    sequence.feed(&mut runner, &head, 320);

    let state = runner.device.state_save(sequence.slot);
    assert_eq!(state.0.len(), runner.device.state_bytes());
    let pages = [4, 6].map(|page| runner.device.page_save(Page(page)));
    let expected = sequence.clone().feed(&mut runner, &tail, 320);

    // The first page is shared, the second is copied on the device; another slot takes the state.
    let mut copied = Sequence::start(&mut runner, 2, &[4, 12]);
    runner.device.page_load(Page(6), &pages[1]).expect("a page of this model");
    runner.device.page_copy(Page(6), Page(12));
    runner.device.state_load(copied.slot, &state).expect("a state of this model");
    copied.position = head.len();
    assert!(copied.feed(&mut runner, &tail, 320) == expected, "a page copy continues differently");

    // A device that starts anew takes state and pages from their bytes.
    let mut other = open("base", CpuOptions::default());
    let mut restored = Sequence::start(&mut other, 1, &[0, 15]);
    other.device.state_load(restored.slot, &state).expect("a state of this model");
    other.device.page_load(Page(0), &pages[0]).expect("a page of this model");
    other.device.page_load(Page(15), &pages[1]).expect("a page of this model");
    restored.position = head.len();
    assert!(restored.feed(&mut other, &tail, 320) == expected, "a restored sequence continues differently");

    // Cleared is new.
    let fresh = Sequence::start(&mut other, 3, &[9]).feed(&mut other, &tail, 320);
    let cleared = Sequence::start(&mut other, 1, &[10]).feed(&mut other, &tail, 320);
    assert!(fresh == cleared, "a cleared slot remembers");
}

#[test]
fn copies_of_another_size_are_refused() {
    let mut runner = open("base", CpuOptions::default());
    let mut state = runner.device.state_save(lily_model::Slot(0));
    state.0 = state.0[1..].into();
    let error = runner.device.state_load(lily_model::Slot(0), &state).expect_err("one byte is missing");
    assert!(error.to_string().contains("expected"), "{error}");
    let error = runner.device.page_load(Page(0), &[0; 3]).expect_err("three bytes are no page");
    assert!(error.to_string().contains("found 3"), "{error}");
}
