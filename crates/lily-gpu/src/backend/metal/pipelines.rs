//! Kernel files become code when the program starts, for the chip it runs on. The system keeps what it compiled.

use std::collections::HashMap;
use std::thread;

use lily_model::ModelError;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary};

use super::device::{Device, fault, message};
use crate::sources;
use crate::translate::metal_source;

type State = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// Entries that are ready to run.
#[derive(Default)]
pub struct Pipelines {
    numbers: HashMap<&'static str, usize>,
    states: Vec<State>,
}

impl Pipelines {
    /// Compiles the files that have these entries, each on a thread of its own.
    pub fn prepare(&mut self, device: &Device, entries: &[&'static str]) -> Result<(), ModelError> {
        let mut files: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
        for &entry in entries.iter().filter(|entry| !self.numbers.contains_key(**entry)) {
            let file = sources::files().find(|file| has_entry(file, entry));
            let file = file.ok_or_else(|| fault(format!("no kernel of this name: {entry}")))?;
            match files.iter_mut().find(|(known, _)| *known == file) {
                Some((_, known)) => known.push(entry),
                None => files.push((file, vec![entry])),
            }
        }
        let made: Vec<Result<Vec<(&'static str, State)>, ModelError>> = thread::scope(|scope| {
            let compile = |(file, entries)| scope.spawn(move || autoreleasepool(|_| compile(device, file, entries)));
            let threads: Vec<_> = files.into_iter().map(compile).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(fault("the thread that compiled a kernel ended"))))
                .collect()
        });
        for file in made {
            for (entry, state) in file? {
                self.numbers.insert(entry, self.states.len());
                self.states.push(state);
            }
        }
        Ok(())
    }

    pub fn number(&self, entry: &str) -> Result<usize, ModelError> {
        self.numbers.get(entry).copied().ok_or_else(|| fault(format!("kernel {entry} was not prepared")))
    }

    pub fn state(&self, number: usize) -> &ProtocolObject<dyn MTLComputePipelineState> {
        &self.states[number]
    }
}

fn compile(device: &Device, file: &str, entries: Vec<&'static str>) -> Result<Vec<(&'static str, State)>, ModelError> {
    let source = metal_source(file, &sources::read).map_err(fault)?;
    let source = if device.tensor_ops { format!("#define LY_TENSOR_OPS 1\n{source}") } else { source };
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(if device.tensor_ops { MTLLanguageVersion::Version4_0 } else { MTLLanguageVersion::Version3_1 });
    // Infinities are used as such. Its successor, `mathMode`, is not there before macOS 15.
    #[allow(deprecated)]
    options.setFastMathEnabled(false);
    let library = device.metal.newLibraryWithSource_options_error(&NSString::from_str(&source), Some(&options));
    let library = library.map_err(|error| fault(format!("{file}: {}", message(&error))))?;
    entries.into_iter().map(|entry| Ok((entry, pipeline(device, &library, entry)?))).collect()
}

fn pipeline(device: &Device, library: &ProtocolObject<dyn MTLLibrary>, entry: &str) -> Result<State, ModelError> {
    let function = library.newFunctionWithName(&NSString::from_str(entry));
    let function = function.ok_or_else(|| fault(format!("kernel {entry} is not in the library that was compiled from its file")))?;
    let state = device.metal.newComputePipelineStateWithFunction_error(&function);
    state.map_err(|error| fault(format!("kernel {entry}: {}", message(&error))))
}

/// Whether a file declares an entry, as a kernel or as an instance of a template.
fn has_entry(file: &str, entry: &str) -> bool {
    let Some(text) = sources::read(file) else { return false };
    [format!("LY_KERNEL({entry},"), format!("kernel void {entry}(")].iter().any(|declared| text.contains(declared))
}
