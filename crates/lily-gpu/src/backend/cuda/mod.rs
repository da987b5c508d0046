//! NVIDIA GPUs, found at run time: one build runs with and without them. Start with [`CudaBackend`].
//!
//! All work goes through one stream: `driver` opens it, `memory` moves bytes, `kernels` turns the kernel files into
//! functions by way of `nvrtc`, `launch` runs lists. Nothing here knows the model.

mod driver;
mod kernels;
mod launch;
mod memory;
mod nvrtc;

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_model::{Bytes, ModelError};

use super::{Backend, Pending, Prepared, Timed};
use crate::commands::{BufferId, CommandList, View};
use crate::sources;
use driver::{Driver, check};
use kernels::{Folder, Kernels, Workshop};
use launch::{Graph, Launcher};
use memory::{Arena, Returns, Ring};
use nvrtc::Nvrtc;

/// Views start at multiples of this, as vectors and asynchronous copies need.
const ALIGNMENT: usize = 256;

/// What a caller may choose.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which GPU, counted from 0.
    pub device: usize,
    /// A folder that keeps compiled kernels from one start to the next.
    pub cache: Option<PathBuf>,
    /// NVRTC's library; `None` looks in the usual places.
    pub nvrtc: Option<PathBuf>,
    /// Wait after every launch, and run graphs launch by launch: slow, but an error then names its kernel.
    pub step_by_step: bool,
}

/// One NVIDIA GPU with its buffers, kernels and graphs.
pub struct CudaBackend {
    options: CudaOptions,
    folder: Folder,
    nvrtc: Nvrtc,
    graphs: Vec<Ready>,
    kernels: Kernels,
    arena: Arena,
    writes: Ring,
    reads: Ring,
    returns: Returns,
    /// Larger slots for the weights, given back once work starts.
    imports: Option<Ring>,
    /// What went wrong in a call that reports nothing itself.
    fault: Option<ModelError>,
    driver: Arc<Driver>,
}

/// A prepared list.
enum Ready {
    Graph(Graph),
    /// To be run launch by launch.
    List(CommandList),
}

impl CudaBackend {
    /// Opens a GPU.
    ///
    /// # Errors
    /// If driver, device or compiler are missing or too old: what was looked for, and what to install.
    pub fn new(options: CudaOptions) -> Result<Self, ModelError> {
        let files = sources::files().map(str::to_owned).collect();
        Self::open(Folder { files, read: Box::new(sources::read) }, options)
    }

    /// As [`CudaBackend::new`], with these kernel files (name and text) instead of the engine's. They may include what is
    /// in the kernels' folder.
    pub fn with_kernels(kernels: &[(&str, &str)], options: CudaOptions) -> Result<Self, ModelError> {
        let texts: Vec<(String, String)> = kernels.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let files = texts.iter().map(|(name, _)| name.clone()).collect();
        let own = move |path: &str| texts.iter().find(|(name, _)| name == path).map(|(_, text)| text.clone());
        Self::open(Folder { files, read: Box::new(move |path| own(path).or_else(|| sources::read(path))) }, options)
    }

    fn open(folder: Folder, options: CudaOptions) -> Result<Self, ModelError> {
        let driver = Driver::open(options.device)?;
        let nvrtc = Nvrtc::load(options.nvrtc.as_deref(), driver.version / 1000)?;
        Ok(CudaBackend {
            folder,
            nvrtc,
            graphs: Vec::new(),
            kernels: Kernels::default(),
            arena: Arena::new(driver.clone())?,
            writes: Ring::new(&driver, 4, 1 << 20)?,
            reads: Ring::new(&driver, 2, 4 << 20)?,
            returns: Returns::new(&driver)?,
            imports: None,
            fault: None,
            options,
            driver,
        })
    }

    fn launcher(&self) -> Launcher<'_> {
        Launcher { driver: &self.driver, kernels: &self.kernels, arena: &self.arena }
    }

    /// Queues a list launch by launch.
    fn queue(&self, list: &CommandList) -> Result<(), ModelError> {
        let launcher = self.launcher();
        for launch in list.launches() {
            launcher.launch(launch)?;
            if self.options.step_by_step {
                self.driver.wait().map_err(|error| launch::named(launch, &error))?;
            }
        }
        Ok(())
    }

    /// Keeps the first error of calls that return none; the next waiting call reports it.
    fn note(&mut self, result: Result<(), ModelError>) {
        if let Err(error) = result {
            self.fault.get_or_insert(error);
        }
    }

    fn copy_now(&self, from: View, to: View) -> Result<(), ModelError> {
        self.driver.enter()?;
        let (source, target) = (self.arena.address(from)?, self.arena.address(View { bytes: from.bytes, ..to })?);
        // SAFETY: both ranges are inside buffers.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, from.bytes, self.driver.stream) }, || {
            format!("copying {} bytes", from.bytes)
        })
    }

    fn clear_now(&self, view: View) -> Result<(), ModelError> {
        self.driver.enter()?;
        let address = self.arena.address(view)?;
        // SAFETY: the range is inside a buffer.
        check(unsafe { sys::cuMemsetD8Async(address, 0, view.bytes, self.driver.stream) }, || format!("clearing {} bytes", view.bytes))
    }

    fn write_now(&mut self, to: View, bytes: &[u8]) -> Result<(), ModelError> {
        self.driver.enter()?;
        let address = self.arena.address(View { bytes: bytes.len(), ..to })?;
        self.writes.write(address, bytes)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> String {
        format!("cuda ({}, {} multiprocessors)", self.driver.name, self.driver.multiprocessors)
    }

    fn has_mma(&self) -> bool {
        true
    }

    fn has_wgmma(&self) -> bool {
        self.driver.capability == (9, 0)
    }

    fn multiprocessors(&self) -> usize {
        self.driver.multiprocessors as usize
    }

    fn memory(&self) -> Option<usize> {
        Some(self.arena.budget)
    }

    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        self.driver.enter()?;
        let buffer = self.arena.allocate(bytes, what)?;
        self.clear_now(View { buffer, offset: 0, bytes })?;
        Ok(buffer)
    }

    fn import(&mut self, bytes: &Bytes, what: &str) -> Result<View, ModelError> {
        self.driver.enter()?;
        let buffer = self.arena.allocate(bytes.len().next_multiple_of(ALIGNMENT), what)?;
        let view = View { buffer, offset: 0, bytes: bytes.len() };
        let address = self.arena.address(view)?;
        let ring = match &mut self.imports {
            Some(ring) => ring,
            none => none.insert(Ring::new(&self.driver, 4, 32 << 20)?),
        };
        ring.write(address, bytes)?;
        Ok(view)
    }

    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError> {
        self.driver.enter()?;
        let goal = self.nvrtc.goal(self.driver.capability)?;
        let workshop = Workshop { nvrtc: &self.nvrtc, goal, cache: self.options.cache.as_deref() };
        self.kernels.prepare(&self.folder, entries, &self.driver, &workshop)
    }

    fn write(&mut self, to: View, bytes: &[u8]) {
        let result = self.write_now(to, bytes);
        self.note(result);
    }

    fn copy(&mut self, from: View, to: View) {
        let result = self.copy_now(from, to);
        self.note(result);
    }

    fn clear(&mut self, view: View) {
        let result = self.clear_now(view);
        self.note(result);
    }

    fn run(&mut self, list: &CommandList) -> Result<(), ModelError> {
        self.driver.enter()?;
        self.imports = None;
        self.queue(list)
    }

    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError> {
        self.driver.enter()?;
        self.imports = None;
        // A graph of nothing would be a special case of the driver's.
        let ready = match self.options.step_by_step || list.launches().is_empty() {
            true => Ready::List(list.clone()),
            false => Ready::Graph(launch::graph(list, &self.launcher(), &self.driver)?),
        };
        self.graphs.push(ready);
        Ok(Prepared(self.graphs.len() as u32 - 1))
    }

    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError> {
        self.driver.enter()?;
        match self.graphs.get(prepared.0 as usize) {
            Some(Ready::Graph(graph)) => graph.replay(),
            Some(Ready::List(list)) => self.queue(list),
            None => Err(driver::fault(format!("expected a prepared list below {}, found number {}", self.graphs.len(), prepared.0))),
        }
    }

    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        if bytes.is_empty() || self.fault.is_some() {
            return self.wait();
        }
        self.driver.enter()?;
        let address = self.arena.address(View { bytes: bytes.len(), ..from })?;
        self.reads.read(address, bytes)
    }

    fn read_later(&mut self, from: View) -> Pending {
        if let Some(fault) = self.fault.take() {
            return Pending::Ready(Err(fault));
        }
        let begun = self.driver.enter().and_then(|()| self.arena.address(from)).and_then(|address| self.returns.begin(address, from.bytes));
        match begun {
            Ok(number) => Pending::Queued { number, bytes: from.bytes },
            Err(error) => Pending::Ready(Err(error)),
        }
    }

    fn collect(&mut self, pending: Pending) -> Result<Box<[u8]>, ModelError> {
        match pending {
            Pending::Ready(result) => result,
            Pending::Queued { number, bytes } => {
                self.driver.enter()?;
                self.returns.end(number, bytes)
            }
        }
    }

    fn profile(&mut self, list: &CommandList) -> Result<Vec<Timed>, ModelError> {
        self.imports = None;
        self.wait()?;
        launch::profile(list, &self.launcher(), &self.driver)
    }

    fn wait(&mut self) -> Result<(), ModelError> {
        self.driver.enter()?;
        let waited = self.driver.wait();
        self.fault.take().map_or(waited, Err)
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // The fields go first to last, each in this context, after all work is done.
        let _ = self.driver.enter().and_then(|()| self.driver.wait());
    }
}
