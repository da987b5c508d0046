//! Launchers against the kernels' own signatures, and the names that the engine asks for against the entries that there
//! are. A launcher that binds two buffers the wrong way round computes rubbish without a complaint from any device.

use std::collections::{BTreeMap, BTreeSet};

use lily_gpu::Access;
use lily_gpu::launch::signatures;
use lily_gpu::policy::{lane_inputs, vector_rows};
use lily_gpu::sources;
use lily_gpu::translate::{Kernel, Kind, Target, metal_source, translate};

/// An entry, the function that it is an instance of, and the whole text that it stands in.
struct Entry {
    kernel: Kernel,
    function: String,
    text: String,
}

/// All entries of the engine. The check of tiles has a kernel of its own that is launched by hand.
fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    for file in sources::files().filter(|file| !file.starts_with("dialect/")) {
        let text = metal_source(file, &sources::read).unwrap();
        let functions = instances(&text);
        for kernel in translate(file, &sources::read, Target::Sim).unwrap().kernels {
            let function = functions.get(&kernel.name).unwrap_or(&kernel.name).clone();
            all.push(Entry { kernel, function, text: text.clone() });
        }
    }
    all
}

/// From the name of each instance of a template to the template's: `LY_KERNEL(name, template<..>)`.
fn instances(text: &str) -> BTreeMap<String, String> {
    let parts = text.split("LY_KERNEL(").skip(1).filter_map(|rest| rest.split_once(','));
    parts.filter_map(|(name, rest)| Some((name.trim().to_owned(), rest.split_once('<')?.0.trim().to_owned()))).collect()
}

/// Name and type of each field of a struct of numbers, types as Rust spells them.
fn fields(text: &str, name: &str) -> Vec<(String, String)> {
    let start = format!("struct {name} {{");
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("no `{start}`"));
    let body: Vec<&str> = rest.split_once('}').unwrap().0.lines().map(|line| line.split("//").next().unwrap()).collect();
    let body = body.join(" ");
    let mut fields = Vec::new();
    for statement in body.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let (ty, names) = statement.split_once(' ').unwrap();
        let ty = match ty {
            "uint" => "u32",
            "float" => "f32",
            other => panic!("{name}: a field of type {other}"),
        };
        fields.extend(names.split(',').map(|name| (name.trim().to_owned(), ty.to_owned())));
    }
    fields
}

#[test]
fn every_launcher_binds_what_its_kernel_declares() {
    let (mut compared, signatures) = (BTreeSet::new(), signatures());
    for Entry { kernel, function, text } in entries() {
        let signature = signatures.iter().find(|signature| signature.kernels.contains(&function.as_str()));
        let signature = signature.unwrap_or_else(|| panic!("kernel `{function}` (entry {}) has no launcher", kernel.name));
        let mut buffers = BTreeMap::new();
        let mut args = Vec::new();
        for parameter in &kernel.parameters {
            match parameter.kind {
                Kind::Buffer { index, writable } => {
                    buffers.insert(index, (parameter.name.as_str(), if writable { Access::Write } else { Access::Read }));
                }
                Kind::Args { .. } => {
                    let name = parameter.ty.trim_start_matches("const ").trim_end_matches('&').trim();
                    args = fields(&text, name);
                }
                Kind::Builtin(_) => {}
            }
        }
        let buffers: Vec<_> = buffers.into_values().collect();
        assert_eq!(signature.bindings, buffers, "buffers of {}: launcher, then kernel", kernel.name);
        let ours: Vec<_> = signature.args.iter().map(|&(name, ty)| (name.to_owned(), ty.to_owned())).collect();
        assert_eq!(ours, args, "argument struct of {}: launcher, then kernel", kernel.name);
        compared.insert(function);
    }
    let launched: BTreeSet<String> = signatures.iter().flat_map(|signature| signature.kernels).map(|&kernel| kernel.to_owned()).collect();
    assert_eq!(launched, compared, "launchers, then kernels");
}

/// The groups of quantisation that exist for rows of so many inputs; a plain matrix has none.
fn groups(bits: &str, cols: usize) -> Vec<usize> {
    match bits {
        "b16" => vec![cols],
        _ => [32, 64, 128].into_iter().filter(|&group| cols.is_multiple_of(group)).collect(),
    }
}

/// Vector kernels are made for the rows and inputs of a lane that the policy may choose for some matrix: each of these
/// exists, and no other.
#[test]
fn the_vector_kernels_are_those_that_the_policy_chooses() {
    let mut asked = BTreeSet::new();
    for bits in ["q4", "q8", "b16"] {
        let shapes = (8..=8192).step_by(8).flat_map(|cols| groups(bits, cols).into_iter().map(move |group| (cols, group)));
        let mut lanes = BTreeSet::new();
        for (cols, group) in shapes {
            lanes.insert(lane_inputs(cols, group, 1));
            for rows in (1..=8).map(vector_rows) {
                let lane = lane_inputs(cols, group, rows);
                asked.extend(["project", "output", "output_chain"].map(|stem| format!("{stem}_{bits}_{rows}_{lane}")));
            }
        }
        for lane in &lanes {
            asked.extend(["experts_gate_up", "experts_gate_up_routes"].map(|stem| format!("{stem}_{bits}_{lane}")));
            let pairs = lanes.iter().map(|shared| format!("{bits}_{lane}_{shared}"));
            asked.extend(pairs.flat_map(|pair| ["experts_down", "experts_down_chain"].map(|stem| format!("{stem}_{pair}"))));
        }
    }
    let vector = ["project", "output", "experts_gate_up", "experts_down"];
    let there = entries().into_iter().filter(|entry| vector.contains(&entry.function.as_str()));
    assert_eq!(there.map(|entry| entry.kernel.name).collect::<BTreeSet<_>>(), asked, "entries, then what the policy chooses");
}
