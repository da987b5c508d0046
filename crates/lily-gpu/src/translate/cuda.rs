//! Kernels as CUDA: `extern "C"` entries with one parameter for each buffer and the argument struct by value.

use super::{Kernel, Kind, ThreadgroupArray};

/// The entry up to its body's first token. A namespace of its own keeps the constants of a template's instances apart;
/// `extern "C"` names the entry without it. A kernel that does not say itself where it waits for the launches before it
/// (`ly_wait_previous`) does so at once, and one that does not say where the launch after it may begin (`ly_release_next`)
/// lets it in at once.
pub fn head(kernel: &Kernel, constants: &str, waits: bool, releases: bool) -> String {
    let mut parameters = Vec::new();
    let mut positions = String::new();
    for parameter in &kernel.parameters {
        let (ty, name) = (&parameter.ty, &parameter.name);
        match parameter.kind {
            Kind::Buffer { .. } => parameters.push(format!("{ty} __restrict__ {name}")),
            Kind::Args { .. } => parameters.push(format!("{} {name}", ty.trim_end_matches('&').trim_end())),
            Kind::Builtin(position) => positions.push_str(&format!("const {ty} {name} = {}; ", expression(position))),
        }
    }
    if !releases {
        positions.push_str("ly::release_next(); ");
    }
    if !waits {
        let read = kernel.parameters.iter().filter(|parameter| matches!(parameter.kind, Kind::Buffer { writable: false, .. }));
        let names: Vec<&str> = read.map(|parameter| parameter.name.as_str()).collect();
        positions.push_str(&format!("ly_wait_previous({}); ", names.join(", ")));
    }
    let (name, parameters) = (&kernel.name, parameters.join(", "));
    format!("namespace ly_entry_{name} {{ {constants}extern \"C\" __global__ void {}({parameters}) {{ {positions}", entry(name))
}

/// An entry's name in CUDA, which has functions of its own with names such as `norm`.
pub fn entry(name: &str) -> String {
    format!("ly_{name}")
}

/// The declaration of a threadgroup array in the body; aligned for vectors and asynchronous copies.
pub fn array(array: &ThreadgroupArray) -> String {
    format!("__shared__ __align__(16) {};", array.declaration)
}

/// Threadgroups are one-dimensional. `uint3` is the dialect's own type.
fn expression(position: &str) -> &'static str {
    match position {
        "threadgroup_position_in_grid" => "uint3(blockIdx.x, blockIdx.y, blockIdx.z)",
        "threadgroups_per_grid" => "uint3(gridDim.x, gridDim.y, gridDim.z)",
        "thread_index_in_threadgroup" => "threadIdx.x",
        "thread_index_in_simdgroup" => "(threadIdx.x & 31u)",
        "simdgroup_index_in_threadgroup" => "(threadIdx.x / 32u)",
        "simdgroups_per_threadgroup" => "(blockDim.x / 32u)",
        other => unreachable!("{other} is no position"),
    }
}
