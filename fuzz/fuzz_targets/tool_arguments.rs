//! See `src/tool_arguments.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz::tool_arguments::run(data));
