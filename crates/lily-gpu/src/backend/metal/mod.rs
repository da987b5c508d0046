//! The GPU of an Apple chip. Start with [`MetalBackend`].
//!
//! `device` opens it, `memory` holds buffers, `pipelines` turns kernel files into code when the program starts, `pass` is a
//! command list made ready, `work` queues. Host and device share all memory, so that nothing is copied but what a pass in
//! flight may still read. Nothing here knows the model.

mod device;
mod memory;
mod pass;
mod pipelines;
mod work;

use lily_model::{Bytes, ModelError};
use objc2::rc::autoreleasepool;

use super::{Backend, Prepared, tile_check};
use crate::commands::{BufferId, CommandList, View};
use device::{Device, fault};
use memory::Arena;
use pass::Pass;
use pipelines::Pipelines;
use work::Work;

/// What a caller may choose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// Tiles as simdgroup matrices even where the chip has tensor operations.
    pub without_tensor_ops: bool,
}

/// One GPU with its buffers, kernels and prepared lists.
pub struct MetalBackend {
    // First, since its end waits for the device, which uses what follows without keeping it.
    work: Work,
    device: Device,
    pipelines: Pipelines,
    arena: Arena,
    prepared: Vec<Pass>,
    /// What went wrong in a call that reports nothing itself.
    fault: Option<ModelError>,
}

impl MetalBackend {
    /// Opens the GPU and checks that its tiles compute what they should; tensor operations that do not are not used.
    ///
    /// # Errors
    /// If there is no GPU of an Apple chip, or if its tiles are wrong.
    pub fn new() -> Result<Self, ModelError> {
        Self::with_options(MetalOptions::default())
    }

    /// As [`MetalBackend::new`].
    ///
    /// # Errors
    /// The same.
    pub fn with_options(options: MetalOptions) -> Result<Self, ModelError> {
        let mut device = Device::open()?;
        if device.tensor_ops && !options.without_tensor_ops {
            let mut backend = Self::open(device.clone())?;
            if tile_check::run(&mut backend).is_ok() {
                return Ok(backend);
            }
        }
        device.tensor_ops = false;
        let mut backend = Self::open(device)?;
        tile_check::run(&mut backend)?;
        Ok(backend)
    }

    fn open(device: Device) -> Result<Self, ModelError> {
        Ok(MetalBackend {
            pipelines: Pipelines::default(),
            arena: Arena::new(&device),
            work: Work::new(&device)?,
            prepared: Vec::new(),
            fault: None,
            device,
        })
    }

    /// Keeps the first error of calls that return none; the next waiting call reports it.
    fn note(&mut self, result: Result<(), ModelError>) {
        if let Err(error) = result {
            self.fault.get_or_insert(error);
        }
    }
}

impl Backend for MetalBackend {
    fn name(&self) -> String {
        let tiles = if self.device.tensor_ops { "tensor operations" } else { "simdgroup matrices" };
        format!("metal ({}, {tiles})", self.device.name())
    }

    fn must_be_brief(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<usize> {
        Some(self.device.budget())
    }

    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        autoreleasepool(|_| self.arena.allocate(bytes, what))
    }

    fn import(&mut self, bytes: &Bytes, what: &str) -> Result<View, ModelError> {
        autoreleasepool(|_| self.arena.import(bytes, what))
    }

    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError> {
        autoreleasepool(|_| self.pipelines.prepare(&self.device, entries))
    }

    fn write(&mut self, to: View, bytes: &[u8]) {
        let result = autoreleasepool(|_| self.work.write(&self.arena, to, bytes));
        self.note(result);
    }

    fn copy(&mut self, from: View, to: View) {
        let result = autoreleasepool(|_| self.work.copy(&self.arena, from, to));
        self.note(result);
    }

    fn clear(&mut self, view: View) {
        let result = autoreleasepool(|_| self.work.clear(&self.arena, view));
        self.note(result);
    }

    fn run(&mut self, list: &CommandList) -> Result<(), ModelError> {
        let pass = Pass::new(list, &self.pipelines, &self.arena)?;
        autoreleasepool(|_| self.work.run(&pass, &self.pipelines, &self.arena))
    }

    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError> {
        self.prepared.push(Pass::new(list, &self.pipelines, &self.arena)?);
        Ok(Prepared(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError> {
        let expected = self.prepared.len();
        let pass = self.prepared.get(prepared.0 as usize);
        let pass = pass.ok_or_else(|| fault(format!("expected a prepared list below {expected}, found number {}", prepared.0)))?;
        autoreleasepool(|_| self.work.run(pass, &self.pipelines, &self.arena))
    }

    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        self.wait()?;
        self.arena.read_idle(from, bytes)
    }

    fn wait(&mut self) -> Result<(), ModelError> {
        let waited = autoreleasepool(|_| self.work.wait());
        self.fault.take().map_or(waited, Err)
    }
}
