//! A backend that notes which kernels were launched, so that a ring can say what it has exercised.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lily_gpu::backend::{Backend, Prepared};
use lily_gpu::commands::{BufferId, CommandList, View};
use lily_model::{Bytes, ModelError};

/// Names of entries.
pub type Launched = Arc<Mutex<BTreeSet<&'static str>>>;

/// Hands everything on.
pub struct Noting<B> {
    pub inner: B,
    pub launched: Launched,
}

impl<B> Noting<B> {
    fn note(&self, list: &CommandList) {
        self.launched.lock().unwrap().extend(list.launches().iter().map(|launch| launch.kernel));
    }
}

impl<B: Backend> Backend for Noting<B> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn memory(&self) -> Option<usize> {
        self.inner.memory()
    }

    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        self.inner.allocate(bytes, what)
    }

    fn import(&mut self, bytes: &Bytes, what: &str) -> Result<View, ModelError> {
        self.inner.import(bytes, what)
    }

    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError> {
        self.inner.prepare_kernels(entries)
    }

    fn has_mma(&self) -> bool {
        self.inner.has_mma()
    }

    fn has_wgmma(&self) -> bool {
        self.inner.has_wgmma()
    }

    fn multiprocessors(&self) -> usize {
        self.inner.multiprocessors()
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
        self.note(list);
        self.inner.run(list)
    }

    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError> {
        self.note(list);
        self.inner.prepare(list)
    }

    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError> {
        self.inner.replay(prepared)
    }

    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        self.inner.read(from, bytes)
    }

    fn wait(&mut self) -> Result<(), ModelError> {
        self.inner.wait()
    }
}
