//! Kernels as CUDA: `extern "C"` entries with one parameter for each buffer and the argument struct by value.

use super::token::Token;
use super::{Kernel, Kind, ThreadgroupArray};

/// The entry up to its body's first token. A namespace of its own keeps the constants of a template's instances apart;
/// `extern "C"` names the entry without it. A kernel that does not say itself where it waits for the launches before it
/// (`ly_wait_previous`) does so at once, and one that does not say where the launch after it may begin (`ly_release_next`)
/// lets it in at once. `resident` is what it says of its threadgroups (`ly_resident`).
pub(super) fn head(kernel: &Kernel, constants: &str, says: &Says) -> String {
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
    if !says.releases {
        positions.push_str("ly::release_next(); ");
    }
    if !says.waits {
        let read = kernel.parameters.iter().filter(|parameter| matches!(parameter.kind, Kind::Buffer { writable: false, .. }));
        let names: Vec<&str> = read.map(|parameter| parameter.name.as_str()).collect();
        positions.push_str(&format!("ly_wait_previous({}); ", names.join(", ")));
    }
    let (name, parameters) = (&kernel.name, parameters.join(", "));
    let bounds = says.resident.as_ref().map_or(String::new(), |resident| format!("__launch_bounds__({resident}) "));
    let arrays = if kernel.threadgroup_kib > 0 { arrays(kernel) } else { String::new() };
    let head = format!("namespace ly_entry_{name} {{ {constants}{arrays}extern \"C\" __global__ void {bounds}");
    format!("{head}{}({parameters}) {{ {positions}", entry(name))
}

/// The threadgroup arrays of a kernel that says how much room a launch must make for them, as one struct in that room.
fn arrays(kernel: &Kernel) -> String {
    let (name, kib) = (&kernel.name, kernel.threadgroup_kib);
    let member = |array: &ThreadgroupArray| format!("alignas({}) {}; ", alignment(array), array.declaration);
    let members: String = kernel.threadgroup_arrays.iter().map(member).collect();
    let check = format!("static_assert(sizeof(Shared) <= {kib} * 1024, \"{name}: more than {kib} KiB of threadgroup arrays\");");
    format!("struct Shared {{ {members}}}; {check} extern __shared__ __align__(1024) unsigned char room[]; ")
}

/// What a kernel's body says of how it runs, which CUDA wants to know before the body.
pub(super) struct Says {
    waits: bool,
    releases: bool,
    /// Threads of a threadgroup and threadgroups that a multiprocessor should have room for: `256, 2`.
    resident: Option<String>,
}

impl Says {
    pub(super) fn of(body: &[Token]) -> Self {
        let place = |word: &str| body.iter().position(|token| token.text == word);
        let arguments = |at: usize| {
            let inside = body[at..].iter().skip_while(|token| token.text != "<").skip(1).take_while(|token| token.text != ">");
            inside.map(|token| token.text.as_str()).collect::<Vec<_>>().join(" ")
        };
        Says {
            waits: place("ly_wait_previous").is_some(),
            releases: place("ly_release_next").is_some(),
            resident: place("ly_resident").map(arguments),
        }
    }
}

/// An entry's name in CUDA, which has functions of its own with names such as `norm`.
pub fn entry(name: &str) -> String {
    format!("ly_{name}")
}

/// The declaration of a threadgroup array in the body.
pub fn array(kernel: &Kernel, array: &ThreadgroupArray) -> String {
    match kernel.threadgroup_kib {
        0 => format!("__shared__ __align__({}) {};", alignment(array), array.declaration),
        _ => format!("auto &{0} = reinterpret_cast<Shared *>(room)->{0};", array.name),
    }
}

/// For vectors and asynchronous copies, or for what wgmma reads in an order of its own, which repeats every 1024 bytes. (An
/// alignment of the type would not survive that of an array.)
fn alignment(array: &ThreadgroupArray) -> usize {
    if array.declaration.trim_start().starts_with("ly_swizzled") { 1024 } else { 16 }
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
