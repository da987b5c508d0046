//! The kernel sources of this build, for the devices that compile them when they start.

include!(concat!(env!("OUT_DIR"), "/kernel_sources.rs"));

/// The text of a file by its path in `kernels/`, such as `lib/rows.h`.
pub fn read(name: &str) -> Option<String> {
    FILES.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
}

/// The files that have entries.
pub fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(file, _)| *file).filter(|file| file.ends_with(".metal"))
}
