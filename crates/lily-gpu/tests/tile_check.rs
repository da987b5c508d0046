//! The check that a device's tiles must pass before they are used, on the simulator: it accepts tiles that are right and
//! says which value is wrong otherwise.

#![cfg(all(feature = "sim", unix))]

use std::path::Path;

use lily_gpu::backend::sim::{SimBackend, SimOptions, checked};
use lily_gpu::backend::tile_check;
use lily_gpu::sources;

const FILE: &str = "dialect/tile_check.metal";

/// Runs the check on its kernel with `from` replaced by `to`.
fn run(from: &str, to: &str, is_checked: bool) -> Result<(), String> {
    let text = sources::read(FILE).unwrap();
    assert!(text.contains(from), "{FILE} has no `{from}`");
    let changed = text.replace(from, to);
    let read = |name: &str| if name == FILE { Some(changed.clone()) } else { sources::read(name) };
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tile_check");
    let simulator = checked::load_files(&[FILE.to_owned()], &read, is_checked, &cache).unwrap();
    let mut device = SimBackend::new(simulator, SimOptions { poison_buffers: true, ..SimOptions::default() }).unwrap();
    tile_check::run(&mut device).map_err(|fault| fault.to_string())
}

#[test]
fn tiles_that_are_right_pass() {
    run("tile_check", "tile_check", false).unwrap();
    run("tile_check", "tile_check", true).unwrap();
}

#[test]
fn each_word_that_is_wrong_is_noticed() {
    let wrong = [
        ("ly_tile_scale_rows(tile, factors);", ""),
        ("ly_tile_mma<32>(tile, left, LD, right, LD);", "ly_tile_mma<16>(tile, left, LD, right, LD);"),
        ("ly_tile_mma_kn<32>(tile, left, LD, across, LD);", "ly_tile_mma<32>(tile, left, LD, across, LD);"),
        ("result[i / 24 * LD + i % 24]", "result[i / 24 * LD + (i % 24 ^ 1)]"),
        ("ly_pack2(result[at], result[at + 1])", "ly_pack2(result[at + 1], result[at])"),
        ("ly_copy16(right + i / 4 * LD + i % 4 * 8, b + i * 8)", "ly_copy16(right + i / 4 * LD + i % 4 * 8, b + (i ^ 1) * 8)"),
    ];
    for (from, to) in wrong {
        let fault = run(from, to, false).unwrap_err();
        assert!(fault.contains("its tiles are wrong: expected"), "`{to}` for `{from}`: {fault}");
    }
}
