//! A fault of a step in flight is the fault of that step's own tokens, and of those that were queued behind it.

#![cfg(all(feature = "sim", unix))]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator};
use lily_gpu::backend::{Backend, Prepared};
use lily_gpu::commands::{BufferId, CommandList, View};
use lily_gpu::{GpuDevice, GpuOptions};
use lily_model::{Batch, Capacity, Choice, Device, Logits, ModelConfig, ModelError, NEXT, Runner, Selection, Weights};
use lily_testkit::ring::rig::{Sequence, open};
use lily_testkit::ring::{Numerics, Subject, Tolerances};

/// The simulator, where one prepared list does not run; as on a GPU the next waiting call says so.
struct Faulty {
    inner: SimBackend,
    /// Prepared lists until the one that does not run.
    until: Arc<AtomicUsize>,
    fault: bool,
}

impl Faulty {
    fn report(&mut self) -> Result<(), ModelError> {
        if std::mem::take(&mut self.fault) { Err(ModelError::Device("planted".into())) } else { Ok(()) }
    }
}

impl Backend for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn memory(&self) -> Option<usize> {
        self.inner.memory()
    }

    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        self.inner.allocate(bytes, what)
    }

    fn import(&mut self, bytes: &lily_model::Bytes, what: &str) -> Result<View, ModelError> {
        self.inner.import(bytes, what)
    }

    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError> {
        self.inner.prepare_kernels(entries)
    }

    fn write(&mut self, to: View, bytes: &[u8]) {
        self.inner.write(to, bytes);
    }

    fn copy(&mut self, from: View, to: View) {
        self.inner.copy(from, to);
    }

    fn clear(&mut self, view: View) {
        self.inner.clear(view);
    }

    fn run(&mut self, list: &CommandList) -> Result<(), ModelError> {
        self.inner.run(list)
    }

    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError> {
        self.inner.prepare(list)
    }

    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError> {
        let left = self.until.load(Ordering::SeqCst);
        self.until.store(left.saturating_sub(1), Ordering::SeqCst);
        self.fault |= left == 1;
        if self.fault { Ok(()) } else { self.inner.replay(prepared) }
    }

    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        self.report()?;
        self.inner.read(from, bytes)
    }

    fn wait(&mut self) -> Result<(), ModelError> {
        self.report()?;
        self.inner.wait()
    }
}

struct Planted(Arc<AtomicUsize>);

impl Subject for Planted {
    type Device = GpuDevice<Faulty>;

    fn label(&self) -> String {
        "sim with a planted fault".into()
    }

    fn numerics(&self) -> Numerics {
        rig::NUMERICS
    }

    fn tolerances(&self) -> Tolerances {
        rig::TOLERANCES
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<Self::Device, ModelError> {
        let inner = SimBackend::new(Simulator::built_in(), SimOptions::default())?;
        GpuDevice::new(Faulty { inner, until: self.0.clone(), fault: false }, config, weights, capacity, GpuOptions::default())
    }
}

/// One token, and the choice after it.
fn step<D: Device>(runner: &mut Runner<D>, sequence: &mut Sequence, token: u32) -> Choice {
    runner.run(&Batch { spans: &[sequence.span(&[token], Logits::Last)] }).expect("it can be queued");
    sequence.position += 1;
    runner.queue_select(&[Selection::greedy()]).expect("it can be queued")
}

#[test]
fn a_fault_belongs_to_its_own_step_and_those_behind_it() {
    let until = Arc::new(AtomicUsize::new(0));
    let mut runner = open(&Planted(until.clone()), "base");
    let mut sequence = Sequence::start(&mut runner, 0, &[3]);
    let mut tokens = vec![5];
    for _ in 0..4 {
        let choice = step(&mut runner, &mut sequence, tokens[tokens.len() - 1]);
        tokens.extend(runner.chosen(choice).expect("nothing is planted yet"));
    }

    // Of each step two lists run, its own and its choice's: the third is the second step's own.
    sequence = Sequence::start(&mut runner, 1, &[4]);
    until.store(3, Ordering::SeqCst);
    let choices = [5, NEXT, NEXT].map(|token| step(&mut runner, &mut sequence, token));
    let [first, second, third] = choices.map(|choice| runner.chosen(choice).map_err(|error| error.to_string()));
    assert_eq!(first, Ok(vec![tokens[1]]), "the step before the fault");
    assert_eq!(second, Err("device: planted".into()));
    assert_eq!(third, Err("device: the step before this one failed".into()));

    // What comes afterwards is none the worse.
    sequence = Sequence::start(&mut runner, 1, &[4]);
    let choices = [5, NEXT, NEXT, NEXT].map(|token| step(&mut runner, &mut sequence, token));
    let again = choices.map(|choice| runner.chosen(choice).expect("nothing is planted any more"));
    assert_eq!(again.concat(), tokens[1..]);
}
