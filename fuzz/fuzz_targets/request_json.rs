//! See `src/request_json.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz::request_json::run(data));
