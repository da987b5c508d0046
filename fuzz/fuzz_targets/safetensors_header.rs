//! See `src/safetensors_header.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz::safetensors_header::run(data));
