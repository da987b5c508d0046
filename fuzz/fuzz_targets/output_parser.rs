//! See `src/output_parser.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz::output_parser::run(data));
