//! What a device must do: hold buffers, move bytes, run command lists. Everything above is shared by all of them.

#[cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]
pub mod cuda;
#[cfg(target_os = "macos")]
pub mod metal;
#[cfg(all(feature = "sim", unix))]
pub mod sim;
pub mod tile_check;

use lily_model::ModelError;

use crate::commands::{BufferId, CommandList, View};

/// A recorded list that the backend has prepared for many runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prepared(pub u32);

/// A launch with the time that it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub stage: &'static str,
    pub kernel: &'static str,
    pub microseconds: f32,
}

/// Bytes that a device brings to the host by itself, see [`Backend::read_later`].
#[derive(Debug)]
pub enum Pending {
    /// They are here, or were lost.
    Ready(Result<Box<[u8]>, ModelError>),
    /// Under way; the backend's own number, and how many bytes.
    Queued { number: u64, bytes: usize },
}

/// Reads that may be under way at a time, and the bytes of each, at most.
pub const PENDING_MAX: usize = 8;
pub const PENDING_BYTES: usize = 4096;

/// One device. Work is queued and runs in the order of the calls; [`Backend::read`] and [`Backend::wait`] wait for it.
/// After an error of queued work the next waiting call reports it, once.
pub trait Backend: Send {
    /// For logs and `/health`, such as `cuda (NVIDIA H200, 132 multiprocessors)`.
    fn name(&self) -> String;

    /// Whether the system ends work that keeps the device for seconds: passes then shrink as their context grows.
    fn must_be_brief(&self) -> bool {
        false
    }

    /// Whether the kernels of `kernels/cuda` run here: those with products from registers (`ly_mma`).
    fn has_mma(&self) -> bool {
        false
    }

    /// Whether those of `kernels/cuda` with products of warpgroups (`ly_wgmma`) do.
    fn has_wgmma(&self) -> bool {
        false
    }

    /// How many threadgroups run at once that leave no room for another, where kernels of `kernels/cuda` run.
    fn multiprocessors(&self) -> usize {
        1
    }

    /// Bytes that buffers may take together; `None` where nothing but the host's memory limits them.
    fn memory(&self) -> Option<usize>;

    /// A zeroed buffer. Called at load only.
    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError>;

    /// All of a new zeroed buffer.
    fn allocate_view(&mut self, bytes: usize, what: &str) -> Result<View, ModelError> {
        Ok(View { buffer: self.allocate(bytes, what)?, offset: 0, bytes })
    }

    /// A read-only view of one tensor's bytes, its offset a multiple of 16: where device and host share memory and the
    /// mapped file's alignment allows, without a copy (one buffer a file, many views), else copied. Called at load only.
    fn import(&mut self, bytes: &lily_model::Bytes, what: &str) -> Result<View, ModelError>;

    /// Makes the entries with these names ready to run. Called once, at load; unknown names are errors.
    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError>;

    /// Queues a copy from the host. The bytes are taken before it returns.
    fn write(&mut self, to: View, bytes: &[u8]);

    /// Queues a copy on the device; views of the same length that do not overlap.
    fn copy(&mut self, from: View, to: View);

    /// Queues zeros.
    fn clear(&mut self, view: View);

    /// Queues a list, once.
    fn run(&mut self, list: &CommandList) -> Result<(), ModelError>;

    /// Prepares a list that will be queued many times with the same bindings and arguments.
    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError>;

    /// Queues a prepared list.
    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError>;

    /// Waits for all queued work, then copies to the host.
    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError>;

    /// Queues a copy to the host of at most [`PENDING_BYTES`], for [`Backend::collect`]. Once [`PENDING_MAX`] later ones
    /// have been queued it is lost. Here it waits, so that nothing is gained; a backend that can do better does.
    fn read_later(&mut self, from: View) -> Pending {
        let mut bytes = vec![0; from.bytes];
        Pending::Ready(self.read(from, &mut bytes).map(|()| bytes.into()))
    }

    /// Waits for such a copy and all that was queued before it, and for nothing else.
    ///
    /// # Errors
    /// Of that work; work queued later reports its own.
    fn collect(&mut self, pending: Pending) -> Result<Box<[u8]>, ModelError> {
        match pending {
            Pending::Ready(result) => result,
            Pending::Queued { number, .. } => Err(ModelError::Device(format!("expected a read of this device, found number {number}"))),
        }
    }

    /// Runs a list once, one launch after the other, and says how long each took. Here by the host's clock, waiting
    /// included; a device with timestamps does better.
    fn profile(&mut self, list: &CommandList) -> Result<Vec<Timed>, ModelError> {
        let mut timed = Vec::with_capacity(list.launches().len());
        for launch in list.launches() {
            let mut one = CommandList::new(false);
            one.push(launch.clone());
            let started = std::time::Instant::now();
            self.run(&one)?;
            self.wait()?;
            let microseconds = started.elapsed().as_secs_f32() * 1e6;
            timed.push(Timed { stage: launch.stage, kernel: launch.kernel, microseconds });
        }
        Ok(timed)
    }

    /// Waits for all queued work.
    fn wait(&mut self) -> Result<(), ModelError>;
}
