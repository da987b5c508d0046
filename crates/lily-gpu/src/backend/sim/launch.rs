//! Launches on the simulator: what a launcher got wrong, then level by level.

use std::ffi::c_void;

use lily_model::ModelError;

use super::api::RawView;
use super::{KernelTable, SimBackend};
use crate::commands::{Access, CommandList, Launch};

/// Threads of a threadgroup, at most.
const THREADS_MAX: u32 = 1024;

impl SimBackend {
    /// Runs launches in levels of the caller's making, each in its order, where [`Backend::run`] would work them out:
    /// for tests of what the simulator says about dependencies.
    ///
    /// # Errors
    /// What [`Backend::run`] refuses.
    ///
    /// [`Backend::run`]: crate::Backend::run
    pub fn run_levels(&mut self, levels: &[Vec<Launch>]) -> Result<(), ModelError> {
        levels.iter().flatten().try_for_each(|launch| self.check_one(launch))?;
        for level in levels {
            self.device.level();
            level.iter().for_each(|launch| self.run_one(launch));
        }
        self.device.level();
        Ok(())
    }

    /// What any device would refuse or silently get wrong.
    pub(super) fn check(&self, list: &CommandList) -> Result<(), ModelError> {
        list.launches().iter().try_for_each(|launch| self.check_one(launch))
    }

    fn check_one(&self, launch: &Launch) -> Result<(), ModelError> {
        self.check_launch(launch).map_err(|what| ModelError::Device(format!("kernel {} ({}): {what}", launch.kernel, launch.stage)))
    }

    fn check_launch(&self, launch: &Launch) -> Result<(), String> {
        let kernel = self.kernels.get(launch.kernel).ok_or("there is no kernel of this name")?;
        if self.ready.as_ref().is_some_and(|ready| !ready.contains(launch.kernel)) {
            return Err("it was not prepared".into());
        }
        if launch.threads == 0 || !launch.threads.is_multiple_of(32) || launch.threads > THREADS_MAX {
            return Err(format!("{} threads: expected a multiple of 32, at most {THREADS_MAX}", launch.threads));
        }
        let args = kernel.args_bytes.unwrap_or(0);
        if launch.args.len() != args {
            return Err(format!("the argument struct has {args} bytes, the launch brings {}", launch.args.len()));
        }
        check_bindings(kernel, launch)?;
        for (index, (view, access)) in launch.bindings.iter().enumerate() {
            let name = &kernel.buffers[index].name;
            let buffer = self.buffers.get(view.buffer.0 as usize).ok_or_else(|| format!("{name}: there is no buffer {}", view.buffer.0))?;
            let end = view.offset + view.bytes;
            if end > buffer.bytes {
                return Err(format!("{name}: bytes {}..{end} of {}, which has {}", view.offset, buffer.what, buffer.bytes));
            }
            if *access == Access::Write && buffer.imported.is_some() {
                return Err(format!("{name}: {} is read only", buffer.what));
            }
        }
        Ok(())
    }

    /// Runs a list that [`Self::check`] let pass.
    pub(super) fn run_list(&mut self, list: &CommandList) {
        for mut level in list.by_level() {
            self.shuffle(&mut level);
            self.device.level();
            level.iter().for_each(|&index| self.run_one(&list.launches()[index]));
        }
        self.device.level();
    }

    /// Nothing more is run after a fault.
    fn run_one(&mut self, launch: &Launch) {
        if self.fault.is_none() {
            self.fault = self.launch(launch).err();
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), String> {
        let kernel = self.kernels[launch.kernel].clone();
        // Argument structs have 4-byte fields.
        let args: Vec<u32> = launch.args.chunks(4).map(|field| u32::from_ne_bytes(field.try_into().expect("4-byte fields"))).collect();
        let view = |at: *mut c_void, bytes| RawView { at, bytes };
        let mut views: Vec<RawView> = launch.bindings.iter().map(|(bound, _)| view(self.address(bound).cast(), bound.bytes)).collect();
        if kernel.args_bytes.is_some() {
            views.push(view(args.as_ptr().cast_mut().cast(), launch.args.len()));
        }
        // SAFETY: the views were checked against the kernel's table and lie inside buffers of this backend; the
        // argument struct lives through the call.
        unsafe { self.device.run(&kernel, &views, launch.grid, launch.threads) }
            .map_err(|fault| if launch.stage.is_empty() { fault } else { format!("{}: {fault}", launch.stage) })
    }

    /// Fisher and Yates, with numbers of a xorshift generator.
    fn shuffle(&mut self, level: &mut [usize]) {
        if self.options.shuffle_seed.is_none() {
            return;
        }
        for last in (1..level.len()).rev() {
            // Zero would stay zero.
            self.shuffle = self.shuffle.max(1);
            self.shuffle ^= self.shuffle << 13;
            self.shuffle ^= self.shuffle >> 7;
            self.shuffle ^= self.shuffle << 17;
            level.swap(last, (self.shuffle % (last as u64 + 1)) as usize);
        }
    }
}

/// Whether the launch binds what the kernel declares, as it declares it, no two of them overlapping a written one.
fn check_bindings(kernel: &KernelTable, launch: &Launch) -> Result<(), String> {
    if launch.bindings.len() != kernel.buffers.len() {
        return Err(format!("it has {} buffers, the launch binds {}", kernel.buffers.len(), launch.bindings.len()));
    }
    for (index, ((view, access), parameter)) in launch.bindings.iter().zip(&kernel.buffers).enumerate() {
        let declared = if parameter.writable { Access::Write } else { Access::Read };
        if *access != declared {
            return Err(format!("buffer {} is declared as {declared:?}, the launch binds it as {access:?}", parameter.name));
        }
        for (other, (beside, _)) in launch.bindings.iter().enumerate() {
            if parameter.writable && other != index && view.overlaps(beside) {
                return Err(format!("buffers {} and {} overlap", parameter.name, kernel.buffers[other].name));
            }
        }
    }
    Ok(())
}
