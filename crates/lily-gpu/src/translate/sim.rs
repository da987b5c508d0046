//! Kernels as C++ for the simulator.
//!
//! An entry becomes a namespace with its threadgroup arrays in a struct, its body, a `lane` function that calls the body
//! for the running lane, and a table that `host.h` describes.

use super::{Kernel, Kind, ThreadgroupArray};

/// What comes before the first line. Each file has a namespace of its own, since two may name different things alike.
pub fn open(file: &str) -> String {
    let stem: String = file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("#include \"dialect/sim.h\"\nnamespace ly_file_{stem} {{\n")
}

/// The entry up to its body's first token.
pub fn head(kernel: &Kernel, constants: &str) -> String {
    let members: String = (kernel.threadgroup_arrays.iter().enumerate())
        .map(|(n, array)| format!("alignas(16) {}; LY_REDZONE({n}) ", array.declaration))
        .collect();
    let parameters: Vec<String> = kernel.parameters.iter().map(|parameter| format!("{} {}", parameter.ty, parameter.name)).collect();
    let shared = if kernel.threadgroup_arrays.is_empty() { "" } else { "auto &ly_shared = *ly::shared_memory<Shared>(); " };
    let (name, parameters) = (&kernel.name, parameters.join(", "));
    format!("namespace ly_entry_{name} {{ {constants}struct Shared {{ {members}}}; static void body({parameters}) {{ {shared}")
}

/// The declaration of a threadgroup array in the body.
pub fn array(array: &ThreadgroupArray) -> String {
    format!("auto &{0} = ly_shared.{0};", array.name)
}

/// What comes after the last line: a table for each entry, and the end of the file's namespace.
pub fn close(file: &str, kernels: &[Kernel]) -> String {
    // What CUDA gives every kernel, unless the kernel says how much it needs, and what Metal does.
    let kib = if file.starts_with("cuda/") { 48 } else { 32 };
    let tables: String = kernels.iter().map(|kernel| table(kernel, kib)).collect();
    format!("\n{tables}}}\n")
}

fn table(kernel: &Kernel, kib: u32) -> String {
    let kib = if kernel.threadgroup_kib > 0 { kernel.threadgroup_kib } else { kib };
    let name = &kernel.name;
    let mut arguments = Vec::new();
    let mut rows = String::new();
    for parameter in &kernel.parameters {
        let (index, access, bytes) = match &parameter.kind {
            Kind::Builtin(position) => {
                arguments.push(expression(position).to_owned());
                continue;
            }
            Kind::Buffer { index, writable: true } => (index, 'w', "0".to_owned()),
            Kind::Buffer { index, writable: false } => (index, 'r', "0".to_owned()),
            Kind::Args { index } => (index, 'a', format!("sizeof({})", args_struct(&parameter.ty))),
        };
        let pointer = if access == 'a' { "Ref" } else { "Ptr" };
        arguments.push(format!("ly::{pointer}{{g.buffers[{index}]}}"));
        rows.push_str(&format!("{{\"{}\", {index}, '{access}', {bytes}}}, ", parameter.name));
    }
    let extents: String = (kernel.threadgroup_arrays.iter())
        .map(|array| format!("{{\"{0}\", offsetof(Shared, {0}), sizeof(Shared::{0})}}, ", array.name))
        .collect();
    let (count, arrays) = (rows.matches('{').count(), kernel.threadgroup_arrays.len());
    let shared = if arrays == 0 { "0" } else { "sizeof(Shared)" };
    let arguments = arguments.join(", ");
    format!(
        "#line 1 \"{name}.entry\"\n\
         namespace ly_entry_{name} {{\n\
         static void lane(ly::Group &g) {{ (void)g; body({arguments}); }}\n\
         static const ly::Extent extents[] = {{{extents}{{}}}};\n\
         static const ly::Param params[] = {{{rows}{{}}}};\n\
         static_assert(LY_THREADGROUP_BYTES({shared}) <= {kib} * 1024, \"{name}: more than {kib} KiB of threadgroup arrays\");\n\
         extern \"C\" const ly::Kernel ly_kernel_{name};\n\
         const ly::Kernel ly_kernel_{name} = {{\"{name}\", lane, {shared}, extents, params, {arrays}, {count}}};\n\
         }}\n"
    )
}

/// The struct in `const NormArgs &`.
fn args_struct(ty: &str) -> &str {
    ty.trim_start_matches("const ").trim_end_matches('&').trim_end().trim_end_matches(" const")
}

fn expression(position: &str) -> &'static str {
    match position {
        "threadgroup_position_in_grid" => "g.position",
        "threadgroups_per_grid" => "g.grid",
        "thread_index_in_threadgroup" => "g.lane",
        "thread_index_in_simdgroup" => "(g.lane & 31)",
        "simdgroup_index_in_threadgroup" => "(g.lane / 32)",
        "simdgroups_per_threadgroup" => "g.simdgroups",
        other => unreachable!("{other} is no position"),
    }
}
