//! Launches: one at a time on the stream, or whole lists as graphs. Start with [`Launcher::launch`] and [`graph`].
//!
//! Programmatic dependent launch lets a kernel start while the one before ends: what has but one dependency gets such an
//! edge. That is safe because every kernel waits (`ly_wait_previous`) before it touches what another launch writes.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_model::ModelError;

use super::driver::{Driver, check, fault};
use super::kernels::{Function, Kernels, Takes};
use super::memory::{Arena, Event};
use crate::backend::Timed;
use crate::commands::{ARGS_MAX, CommandList, Launch};

/// What a launch needs to become a call: kernels and addresses.
pub(super) struct Launcher<'a> {
    pub driver: &'a Driver,
    pub kernels: &'a Kernels,
    pub arena: &'a Arena,
}

/// The values of a kernel's parameters, where the driver reads them from.
struct Values {
    addresses: Vec<sys::CUdeviceptr>,
    args: Args,
}

/// Room for every argument struct: the driver reads as many bytes as the kernel's struct has.
#[repr(align(16))]
struct Args([u8; ARGS_MAX]);

impl Launcher<'_> {
    /// Queues one launch.
    pub fn launch(&self, launch: &Launch) -> Result<(), ModelError> {
        let (function, values) = self.resolve(launch)?;
        let mut pointers = values.pointers(&function.takes);
        let [x, y, z] = launch.grid;
        // SAFETY: `pointers` has a value for each parameter of the kernel, which the driver copies before it returns; views
        // are inside their buffers, and that the kernel stays inside its views is what the kernel tests are for.
        let queued = unsafe {
            sys::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                function.room,
                self.driver.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(queued, || describe(launch))
    }

    /// Checks a launch against its kernel and finds the addresses of its views.
    fn resolve(&self, launch: &Launch) -> Result<(&Function, Values), ModelError> {
        let function = self.kernels.get(launch.kernel)?;
        let refused = |what: String| Err(fault(format!("{}: {what}", describe(launch))));
        if launch.bindings.len() != function.bindings {
            return refused(format!("expected {} buffers, found {}", function.bindings, launch.bindings.len()));
        }
        if function.takes.contains(&Takes::Args) == launch.args.is_empty() || launch.args.len() > ARGS_MAX {
            let expected = if launch.args.is_empty() { "an argument struct" } else { "none" };
            return refused(format!("expected {expected} of at most {ARGS_MAX} bytes, found {}", launch.args.len()));
        }
        if launch.threads > function.threads_max {
            return refused(format!("expected at most {} threads, which its registers allow", function.threads_max));
        }
        let mut args = Args([0; ARGS_MAX]);
        args.0[..launch.args.len()].copy_from_slice(&launch.args);
        let addresses = launch.bindings.iter().map(|(view, _)| self.arena.address(*view)).collect::<Result<_, _>>();
        let addresses = addresses.map_err(|error| named(launch, &error))?;
        Ok((function, Values { addresses, args }))
    }
}

impl Values {
    fn pointers(&self, takes: &[Takes]) -> Vec<*mut c_void> {
        let pointer = |takes: &Takes| match takes {
            Takes::Buffer(index) => (&raw const self.addresses[*index]).cast::<c_void>().cast_mut(),
            Takes::Args => (&raw const self.args).cast::<c_void>().cast_mut(),
        };
        takes.iter().map(pointer).collect()
    }
}

/// An error of the work queued last, with the launch that it came from.
pub(super) fn named(launch: &Launch, error: &ModelError) -> ModelError {
    let text = error.to_string();
    fault(format!("{}: {}", describe(launch), text.strip_prefix("device: cuda: ").unwrap_or(&text)))
}

/// A launch as messages name it.
fn describe(launch: &Launch) -> String {
    let [x, y, z] = launch.grid;
    format!("kernel `{}` of step {} ({x} x {y} x {z} threadgroups of {} threads)", launch.kernel, launch.stage, launch.threads)
}

/// A list made ready to run as one call.
pub(super) struct Graph {
    driver: Arc<Driver>,
    runnable: sys::CUgraphExec,
    /// For messages.
    launches: usize,
}

// SAFETY: as for `Driver`: a handle of the driver, used with its context current.
unsafe impl Send for Graph {}

impl Graph {
    /// Queues all its launches.
    pub fn replay(&self) -> Result<(), ModelError> {
        // SAFETY: graph and stream live. A graph that runs already is queued behind itself.
        check(unsafe { sys::cuGraphLaunch(self.runnable, self.driver.stream) }, || format!("a graph of {} launches", self.launches))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `Draft::finish`, destroyed once; the driver keeps it until a run under way is done.
        let _ = unsafe { sys::cuGraphExecDestroy(self.runnable) };
    }
}

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`: the end of a kernel as it says itself.
const PROGRAMMATIC_PORT: u8 = 1;

/// A graph with exactly the edges of the list.
pub(super) fn graph(list: &CommandList, launcher: &Launcher, driver: &Arc<Driver>) -> Result<Graph, ModelError> {
    let mut draft = Draft::new()?;
    let mut nodes: Vec<sys::CUgraphNode> = Vec::with_capacity(list.launches().len());
    for (index, launch) in list.launches().iter().enumerate() {
        let after: Vec<_> = list.edges(index).iter().map(|&earlier| nodes[earlier as usize]).collect();
        match after[..] {
            [one] if driver.overlaps() => {
                let node = draft.kernel(launch, launcher, &[])?;
                draft.overlap(one, node)?;
                nodes.push(node);
            }
            _ => nodes.push(draft.kernel(launch, launcher, &after)?),
        }
    }
    draft.finish(driver, nodes.len())
}

/// Runs the list once, one launch after the other, with a clock event between any two: by a graph, so that the host's
/// time to queue them is not in the times. The events' own is: 3.3 us for a launch that takes 0.7 in a graph without
/// them, on an H200.
pub(super) fn profile(list: &CommandList, launcher: &Launcher, driver: &Arc<Driver>) -> Result<Vec<Timed>, ModelError> {
    let mut draft = Draft::new()?;
    let events = (0..=list.launches().len()).map(|_| Event::new(driver, true)).collect::<Result<Vec<_>, _>>()?;
    let mut last = draft.event(&events[0], &[])?;
    for (launch, event) in list.launches().iter().zip(&events[1..]) {
        last = draft.kernel(launch, launcher, &[last])?;
        last = draft.event(event, &[last])?;
    }
    let graph = draft.finish(driver, list.launches().len())?;
    graph.replay()?;
    driver.wait()?;
    let timed = |(launch, pair): (&Launch, &[Event])| {
        Ok(Timed { stage: launch.stage, kernel: launch.kernel, microseconds: pair[1].since(&pair[0])? })
    };
    list.launches().iter().zip(events.windows(2)).map(timed).collect()
}

/// A graph under construction.
struct Draft(sys::CUgraph);

impl Draft {
    fn new() -> Result<Self, ModelError> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` outlives the call.
        check(unsafe { sys::cuGraphCreate(&mut graph, 0) }, || "a graph".into())?;
        Ok(Draft(graph))
    }

    fn kernel(&mut self, launch: &Launch, launcher: &Launcher, after: &[sys::CUgraphNode]) -> Result<sys::CUgraphNode, ModelError> {
        let (function, values) = launcher.resolve(launch)?;
        let mut pointers = values.pointers(&function.takes);
        let [x, y, z] = launch.grid;
        let node_params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.handle,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: function.room,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut node = std::ptr::null_mut();
        // SAFETY: as in `Launcher::launch`; the driver copies parameters and dependencies before it returns.
        let added = unsafe { sys::cuGraphAddKernelNode_v2(&mut node, self.0, after.as_ptr(), after.len(), &node_params) };
        check(added, || describe(launch))?;
        Ok(node)
    }

    /// `node` may begin while `before` ends: every kernel waits itself for all that came before it.
    fn overlap(&mut self, before: sys::CUgraphNode, node: sys::CUgraphNode) -> Result<(), ModelError> {
        let edge = sys::CUgraphEdgeData {
            from_port: PROGRAMMATIC_PORT,
            to_port: 0,
            type_: sys::CUgraphDependencyType_enum::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
            reserved: [0; 5],
        };
        // SAFETY: both nodes belong to the graph; the driver copies what the pointers show.
        check(unsafe { sys::cuGraphAddDependencies_v2(self.0, &before, &node, &edge, 1) }, || "an edge of a graph".into())
    }

    fn event(&mut self, event: &Event, after: &[sys::CUgraphNode]) -> Result<sys::CUgraphNode, ModelError> {
        let mut node = std::ptr::null_mut();
        // SAFETY: the event outlives the graph's run, which its maker waits for.
        let added = unsafe { sys::cuGraphAddEventRecordNode(&mut node, self.0, after.as_ptr(), after.len(), event.handle) };
        check(added, || "a clock event in a graph".into())?;
        Ok(node)
    }

    fn finish(self, driver: &Arc<Driver>, launches: usize) -> Result<Graph, ModelError> {
        let mut runnable = std::ptr::null_mut();
        // SAFETY: the graph lives; what is made of it is independent of it.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&mut runnable, self.0, 0) }, || format!("a graph of {launches} launches"))?;
        let graph = Graph { driver: driver.clone(), runnable, launches };
        // SAFETY: as above. Uploading now spares the first run the time.
        check(unsafe { sys::cuGraphUpload(runnable, driver.stream) }, || format!("a graph of {launches} launches"))?;
        Ok(graph)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}
