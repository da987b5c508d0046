//! What the GPU is, what it can do, and how much memory it gives.

use lily_model::ModelError;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSOperatingSystemVersion, NSProcessInfo};
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

// Without it there is no default device.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

#[derive(Clone)]
pub struct Device {
    pub metal: Retained<ProtocolObject<dyn MTLDevice>>,
    /// Tiles are multiplied by Metal 4's tensor operations.
    pub tensor_ops: bool,
}

impl Device {
    pub fn open() -> Result<Self, ModelError> {
        let metal = MTLCreateSystemDefaultDevice().ok_or_else(|| fault("expected a GPU, Metal found none"))?;
        if !metal.supportsFamily(MTLGPUFamily::Apple7) {
            return Err(fault(format!("expected the GPU of an Apple chip (M1 or later), found {}", metal.name())));
        }
        // Before this system they lack element types; on earlier chips they are slower than simdgroup matrices.
        let system = NSOperatingSystemVersion { majorVersion: 26, minorVersion: 1, patchVersion: 0 };
        let recent = NSProcessInfo::processInfo().isOperatingSystemAtLeastVersion(system);
        let tensor_ops = recent && metal.supportsFamily(MTLGPUFamily::Apple10);
        Ok(Device { metal, tensor_ops })
    }

    pub fn name(&self) -> String {
        self.metal.name().to_string()
    }

    /// Bytes that buffers may take together before the system pages them.
    pub fn budget(&self) -> usize {
        self.metal.recommendedMaxWorkingSetSize() as usize
    }
}

pub fn fault(what: impl Into<String>) -> ModelError {
    ModelError::Device(what.into())
}

/// What Metal says about an error.
pub fn message(error: &NSError) -> String {
    format!("{} (code {})", error.localizedDescription(), error.code())
}
