//! The model ring: whole tiny models, against transformers and mlx-lm in f32, and against themselves.
//!
//! Every check prints what it measured; run the tests with `--nocapture` to see it.

use lily_model::{Device, Logits, Page, Runner, Slot};

use super::rig::{Sequence, open, rows, run};
use super::ties::Ties;
use super::{Bound, Subject};
use crate::checkpoint::{load_model, load_model_stored};
use crate::generate::Rng;
use crate::golden::{Golden, compare, goldens_directory, worst_row};
use crate::reference::Trace;

/// The logits of every sequence of a golden (see [`crate::golden::TINY`]), and, where every row is bounded, the greedy
/// continuations: they must follow wherever the margin is larger than the error.
pub fn check_golden<S: Subject>(subject: &S, name: &str, bound: Bound) {
    let golden = Golden::load(name).expect("the golden loads");
    let mut runner = open(subject, name);
    let (vocab, label) = (runner.config.vocab, format!("{name} {}", subject.label()));
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let mut ours = Sequence::start(&mut runner, 1, &[3, 0, 2]);
        let logits = ours.feed(&mut runner, &sequence.tokens, 320);
        let mut error = 0.0f64;
        for engine in ["mlx", "transformers"] {
            let tensor = format!("sequences.{index}.logits.{engine}");
            if engine == "transformers" && !golden.has(&tensor) {
                continue;
            }
            error = error.max(check_logits(&format!("{label} {tensor}"), &logits, (golden.tensor(&tensor), vocab), bound));
        }
        if let Bound::EveryRow(_) = bound {
            let tokens = ours.greedy(&mut runner, &logits, sequence.mlx.tokens.len());
            let compared = sequence.mlx.assert_followed(&label, &tokens, error);
            println!("{label} sequence {index}: {compared} of {} greedy tokens equal", tokens.len());
        }
    }
}

/// The logits of every sequence of a golden on a device whose rounding may change the choice of experts: see
/// [`super::ties`]. The first rows, all of them up to the first near-tie, are held to `bound`.
pub fn check_golden_but_ties<S: Subject>(subject: &S, name: &str, bound: Bound) {
    let golden = Golden::load(name).expect("the golden loads");
    let directory = goldens_directory().join(name);
    let model = load_model_stored(&directory, subject.stored()).expect("the reference loads it");
    let exact = load_model(&directory).expect("the reference loads it").embedding.values == model.embedding.values;
    let mut runner = open(subject, name);
    let label = format!("{name} {}", subject.label());
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let logits = Sequence::start(&mut runner, 1, &[3, 0, 2]).feed(&mut runner, &sequence.tokens, 320);
        let mut trace = Trace::on();
        let reference = model.forward(&sequence.tokens, &mut model.state(), &mut trace);
        let mut ties = Ties::new(&label, subject.tolerances().near_tie, &model, &trace);
        ties.excuse_all_near();
        let rows: Vec<usize> = (0..sequence.tokens.len()).collect();
        let behind_all = (model.layers.len(), true);
        println!("{label} sequence {index}: {} of {} rows excused", ties.excused(), rows.len());
        assert!(4 * ties.excused() <= 3 * rows.len(), "{label}: too few rows are left to compare");
        ties.assert_within(behind_all, "logits (reference)", &rows, (&logits, &reference), bound);
        for engine in ["mlx", "transformers"] {
            let tensor = format!("sequences.{index}.logits.{engine}");
            if exact && golden.has(&tensor) {
                ties.assert_within(behind_all, &tensor, &rows, (&logits, golden.tensor(&tensor)), bound);
            }
        }
    }
}

/// Prints and checks; returns the largest error of a logit, in the row that is worst.
pub(super) fn check_logits(label: &str, logits: &[f32], (expected, vocab): (&[f32], usize), bound: Bound) -> f64 {
    println!("{}", compare(label, logits, expected));
    let worst = bound.compare(label, logits, expected, vocab);
    if let Bound::EveryRow(_) = bound {
        println!("{worst}");
    }
    worst.assert_within(bound.tolerance());
    worst.max_abs
}

fn prompt(length: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.below(vocab) as u32).collect()
}

/// A prompt in chunks of each length gives the logits of the whole one, but for near-ties of the router.
pub fn check_chunks<S: Subject>(subject: &S, chunks: &[usize], tolerance: f64) {
    let mut runner = open(subject, "base");
    let tokens = prompt(300, runner.config.vocab, 5);
    let model = load_model_stored(&goldens_directory().join("base"), subject.stored()).expect("the reference loads it");
    let mut trace = Trace::on();
    model.forward(&tokens, &mut model.state(), &mut trace);
    let mut ties = Ties::new(&subject.label(), subject.tolerances().near_tie, &model, &trace);
    ties.excuse_all_near();
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let whole = Sequence::start(&mut runner, 0, &[0, 1]).feed(&mut runner, &tokens, 320);
    for &chunk in chunks {
        let chunked = Sequence::start(&mut runner, 1, &[7, 4]).feed(&mut runner, &tokens, chunk);
        let label = format!("chunks of {chunk}");
        println!("{}", compare(&format!("{}, {label}", subject.label()), &chunked, &whole));
        ties.assert_within((model.layers.len(), true), &label, &rows, (&chunked, &whole), Bound::EveryRow(tolerance));
    }
}

/// Subjects that differ in what must not matter (threads, the order of lanes) agree in every bit of logits and state,
/// and in the text.
pub fn check_equal_bits<S: Subject>(subjects: &[S]) {
    let golden = Golden::load("base").expect("the golden loads");
    let tokens = &golden.sequences[0].tokens;
    let outcome = |subject: &S| {
        let mut runner = open(subject, "base");
        let mut sequence = Sequence::start(&mut runner, 0, &[2, 1]);
        let logits = sequence.feed(&mut runner, tokens, 37);
        let greedy = sequence.greedy(&mut runner, &logits, 40);
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        (bits, greedy, runner.device.state_save(sequence.slot))
    };
    let (first, rest) = subjects.split_first().expect("a subject");
    let expected = outcome(first);
    assert!(!rest.is_empty(), "one subject has nothing to differ from");
    for subject in rest {
        let (found, label) = (outcome(subject), format!("{} against {}", subject.label(), first.label()));
        assert!(found.0 == expected.0, "{label}: logits differ");
        assert_eq!(found.1, expected.1, "{label}: greedy tokens");
        assert!(found.2 == expected.2, "{label}: state differs");
    }
}

/// Three sequences in one batch, prefill and decode mixed, compute what each computes alone.
pub fn check_batch<S: Subject>(subject: &S, tolerance: f64) {
    let mut runner = open(subject, "base");
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
    // The second sequence decodes while the others prefill, then all decode.
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
        let worst = worst_row(&format!("{} sequence {at} in a batch", subject.label()), together, alone, vocab);
        println!("{worst}");
        worst.assert_within(tolerance);
    }
}

/// A saved state with shared, copied or restored pages continues bit for bit; a cleared slot is new.
pub fn check_saved_state<S: Subject>(subject: &S) {
    let mut runner = open(subject, "base");
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
    let mut other = open(subject, "base");
    let mut restored = Sequence::start(&mut other, 1, &[0, 15]);
    other.device.state_load(restored.slot, &state).expect("a state of this model");
    other.device.page_load(Page(0), &pages[0]).expect("a page of this model");
    other.device.page_load(Page(15), &pages[1]).expect("a page of this model");
    restored.position = head.len();
    assert!(restored.feed(&mut other, &tail, 320) == expected, "a restored sequence continues differently");
    check_cleared(&mut other, &tail);
}

fn check_cleared<D: Device>(runner: &mut Runner<D>, tail: &[u32]) {
    let fresh = Sequence::start(runner, 3, &[9]).feed(runner, tail, 320);
    let cleared = Sequence::start(runner, 1, &[10]).feed(runner, tail, 320);
    assert!(fresh == cleared, "a cleared slot remembers");
}

/// Copies of another size are refused with what was expected and what was found.
pub fn check_wrong_copies<S: Subject>(subject: &S) {
    let mut runner = open(subject, "base");
    let mut state = runner.device.state_save(Slot(0));
    state.0 = state.0[1..].into();
    let error = runner.device.state_load(Slot(0), &state).expect_err("one byte is missing");
    assert!(error.to_string().contains("expected"), "{error}");
    let error = runner.device.page_load(Page(0), &[0; 3]).expect_err("three bytes are no page");
    assert!(error.to_string().contains("found 3"), "{error}");
}
