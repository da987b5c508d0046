//! A command list with everything looked up that encoding it needs, and checked.

use lily_model::ModelError;
use objc2_metal::{MTLComputePipelineState, MTLSize};

use super::device::fault;
use super::memory::Arena;
use super::pipelines::Pipelines;
use crate::commands::{ARGS_MAX, Access, BufferId, CommandList, Launch};

pub struct Pass {
    /// Dispatches of one level may run at once; a barrier comes before the next.
    pub levels: Vec<Vec<Dispatch>>,
}

pub struct Dispatch {
    /// Of the pipelines.
    pub pipeline: usize,
    /// Buffers and offsets, from index 0 on.
    pub buffers: Vec<(BufferId, usize)>,
    /// After the last buffer.
    pub args: Vec<u8>,
    pub grid: MTLSize,
    pub threads: MTLSize,
}

impl Pass {
    /// # Errors
    /// A kernel that was not prepared, more threads than it can have, a view outside its buffer.
    pub fn new(list: &CommandList, pipelines: &Pipelines, arena: &Arena) -> Result<Self, ModelError> {
        let launches = list.launches();
        let dispatch = |index: usize| Dispatch::new(&launches[index], pipelines, arena);
        let levels = list.by_level().into_iter().map(|level| level.into_iter().map(dispatch).collect()).collect::<Result<_, _>>()?;
        Ok(Pass { levels })
    }
}

impl Dispatch {
    fn new(launch: &Launch, pipelines: &Pipelines, arena: &Arena) -> Result<Self, ModelError> {
        let pipeline = pipelines.number(launch.kernel)?;
        let most = pipelines.state(pipeline).maxTotalThreadsPerThreadgroup();
        let kernel = launch.kernel;
        if launch.threads as usize > most {
            return Err(fault(format!("kernel {kernel}: expected at most {most} threads in a threadgroup, found {}", launch.threads)));
        }
        if launch.args.len() > ARGS_MAX {
            return Err(fault(format!("kernel {kernel}: expected at most {ARGS_MAX} bytes of arguments, found {}", launch.args.len())));
        }
        for (view, access) in &launch.bindings {
            match access {
                Access::Read => arena.check(view)?,
                Access::Write => arena.check_writable(view)?,
            }
        }
        Ok(Dispatch {
            pipeline,
            buffers: launch.bindings.iter().map(|(view, _)| (view.buffer, view.offset)).collect(),
            args: launch.args.clone(),
            grid: size(launch.grid),
            threads: size([launch.threads, 1, 1]),
        })
    }
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}
