//! Launchers: one named struct for each kernel and what stands in for it (`kernels/cuda`), one field for each argument.
//!
//! A launcher says of each buffer whether the kernel reads or writes it; [`crate::commands`] derives the dependencies
//! from that. `tests/launchers.rs` holds names, order, access and argument structs against the kernels' own signatures.

mod attention;
mod delta;
mod experts;
mod rows;
mod select;

pub(crate) use attention::{AttnCombine, AttnDecode, AttnFlash, AttnPrepare};
pub(crate) use delta::{DeltaArgs, DeltaCarry, DeltaConv, DeltaFactors, DeltaGate, DeltaScan, DeltaScanBlocked, DeltaStep};
pub(crate) use experts::{
    ExpertsDown, ExpertsDownMatmul, ExpertsDownMma, ExpertsGateUp, ExpertsGateUpMatmul, GroupedArgs, MoeCombine, MoeCount, MoePlace,
    MoeTopK,
};
pub(crate) use rows::{Dequantise, Embed, Halve, Norm, Output, Project, ProjectMatmul};
pub(crate) use select::{SelectLargest, SelectToken};

use crate::commands::Access;

/// What a launcher believes of its kernel.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Names of the kernel functions that it launches, a native one beside the portable one; entries may have other names.
    pub kernels: &'static [&'static str],
    /// Buffers in order of their index; the argument struct follows.
    pub bindings: &'static [(&'static str, Access)],
    /// Name and type of the argument struct's fields, four bytes each.
    pub args: &'static [(&'static str, &'static str)],
}

/// All launchers, for the test that compares them with the kernels.
pub fn signatures() -> Vec<Signature> {
    vec![
        Embed::SIGNATURE,
        Norm::SIGNATURE,
        Halve::SIGNATURE,
        Project::SIGNATURE,
        ProjectMatmul::SIGNATURE,
        Output::SIGNATURE,
        Dequantise::SIGNATURE,
        DeltaStep::SIGNATURE,
        DeltaConv::SIGNATURE,
        DeltaCarry::SIGNATURE,
        DeltaScan::SIGNATURE,
        DeltaFactors::SIGNATURE,
        DeltaScanBlocked::SIGNATURE,
        DeltaGate::SIGNATURE,
        AttnPrepare::SIGNATURE,
        AttnDecode::SIGNATURE,
        AttnCombine::SIGNATURE,
        AttnFlash::SIGNATURE,
        MoeTopK::SIGNATURE,
        MoeCount::SIGNATURE,
        MoePlace::SIGNATURE,
        ExpertsGateUp::SIGNATURE,
        ExpertsDown::SIGNATURE,
        ExpertsDownMma::SIGNATURE,
        ExpertsGateUpMatmul::SIGNATURE,
        ExpertsDownMatmul::SIGNATURE,
        MoeCombine::SIGNATURE,
        SelectLargest::SIGNATURE,
        SelectToken::SIGNATURE,
    ]
}

/// Declares an argument struct: fields of four bytes, in the kernel's order.
macro_rules! arguments {
    ($(#[$doc:meta])* $name:ident {$($field:ident: $ty:ty),* $(,)?}) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub $field: $ty,)*
        }

        impl $name {
            pub const FIELDS: &[(&'static str, &'static str)] = &[$((stringify!($field), stringify!($ty))),*];

            /// As the kernel lays it out.
            pub fn bytes(&self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(4 * Self::FIELDS.len());
                $(bytes.extend_from_slice(&self.$field.to_le_bytes());)*
                bytes
            }
        }
    };
}
pub(crate) use arguments;

/// Declares a launcher: its kernel, or those that do the same with the same arguments; buffers with their access in the
/// kernel's order, and the argument struct, which kernels may share ([`arguments`]), or its fields.
macro_rules! launcher {
    ($name:ident = $($kernel:literal)|+ [$($access:ident $buffer:ident),* $(,)?] $args:ident) => {
        pub(crate) struct $name {
            /// One of the kernel's entries.
            pub entry: &'static str,
            $(pub $buffer: $crate::commands::View,)*
            pub args: $args,
            /// Threadgroups.
            pub grid: [usize; 3],
            /// Threads of a threadgroup.
            pub threads: u32,
        }

        impl $name {
            pub const SIGNATURE: $crate::launch::Signature = $crate::launch::Signature {
                kernels: &[$($kernel),+],
                bindings: &[$((stringify!($buffer), $crate::commands::Access::$access)),*],
                args: $args::FIELDS,
            };

            /// Appends the launch to a list, under the step's name.
            pub fn launch(self, stage: &'static str, list: &mut $crate::commands::CommandList) {
                list.push($crate::commands::Launch {
                    kernel: self.entry,
                    stage,
                    bindings: vec![$((self.$buffer, $crate::commands::Access::$access)),*],
                    args: self.args.bytes(),
                    grid: self.grid.map(|count| count as u32),
                    threads: self.threads,
                });
            }
        }
    };
    ($name:ident = $($kernel:literal)|+ [$($access:ident $buffer:ident),* $(,)?] {$($arg:ident: $ty:ty),* $(,)?}) => {
        pub(crate) struct $name {
            /// One of the kernel's entries.
            pub entry: &'static str,
            $(pub $buffer: $crate::commands::View,)*
            $(pub $arg: $ty,)*
            /// Threadgroups.
            pub grid: [usize; 3],
            /// Threads of a threadgroup.
            pub threads: u32,
        }

        impl $name {
            pub const SIGNATURE: $crate::launch::Signature = $crate::launch::Signature {
                kernels: &[$($kernel),+],
                bindings: &[$((stringify!($buffer), $crate::commands::Access::$access)),*],
                args: &[$((stringify!($arg), stringify!($ty))),*],
            };

            /// Appends the launch to a list, under the step's name.
            pub fn launch(self, stage: &'static str, list: &mut $crate::commands::CommandList) {
                let mut args = Vec::with_capacity(4 * Self::SIGNATURE.args.len());
                $(args.extend_from_slice(&self.$arg.to_le_bytes());)*
                list.push($crate::commands::Launch {
                    kernel: self.entry,
                    stage,
                    bindings: vec![$((self.$buffer, $crate::commands::Access::$access)),*],
                    args,
                    grid: self.grid.map(|count| count as u32),
                    threads: self.threads,
                });
            }
        }
    };
}
pub(crate) use launcher;
