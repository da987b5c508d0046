//! See `src/cache_files.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz::cache_files::run(data));
