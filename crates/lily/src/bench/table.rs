//! What a bench prints and writes.

use lily_model::Footprint;
use serde_json::{Value, json};

use super::arm::Found;
use super::curves::{self, Point};
use super::{Subject, write};

/// The figures of all arms: beside each other where they are few, one after the other where they are switches.
pub fn print(found: &[Found], footprint: &Footprint) {
    println!("device   {}", found[0].device);
    match found {
        [ours, theirs] if !theirs.notes.is_empty() => beside(ours, theirs),
        all if all[0].arm.rows > 1 || all.len() > 1 && all[1].arm.rows > 1 => rows(all, footprint),
        all => all.iter().for_each(one),
    }
}

fn one(found: &Found) {
    println!("{}\n{:>8} {:>14} {:>13}  digest", found.arm.name, "tokens", "prefill tok/s", "decode tok/s");
    for length in found.lengths() {
        let (prefill, decode) = (found.prefill_tok_s(length), found.decode_tok_s(length));
        println!("{length:>8} {prefill:>14.1} {decode:>13.1}  {}", found.digest(length));
    }
}

fn beside(ours: &Found, theirs: &Found) {
    println!("against  {} at {}", theirs.arm.name, theirs.device);
    println!("{:>8} {:^34} {:^34}", "", "prefill tok/s", "decode tok/s");
    println!("{:>8} {:>12} {:>12} {:>8} {:>12} {:>12} {:>8}  digest", "tokens", "lily", "server", "ratio", "lily", "server", "ratio");
    for length in ours.lengths() {
        let [prefill, decode] = [Found::prefill_tok_s, Found::decode_tok_s].map(|rate| [rate(ours, length), rate(theirs, length)]);
        let columns = |[ours, theirs]: [f64; 2]| format!("{ours:>12.1} {theirs:>12.1} {:>7.2}x", ours / theirs);
        println!("{length:>8} {} {}  {}", columns(prefill), columns(decode), ours.digest(length));
    }
    theirs.notes.iter().for_each(|note| println!("  {note}"));
}

/// Several sequences in one step. Bytes are a bound: weights, states, keys and values once each, and as many experts as
/// random choices would name.
fn rows(all: &[Found], footprint: &Footprint) {
    for length in all[0].lengths() {
        println!(
            "decode after {length} tokens\n{:>9} {:>10} {:>12} {:>8} {:>10} {:>8}  digest",
            "sequences", "tok/s", "each", "gain", "MB a step", "GB/s"
        );
        let single = all.iter().find(|found| found.arm.rows == 1).map(|found| found.decode_tok_s(length));
        for found in all {
            let rows = found.arm.rows;
            let (rate, bytes) = (found.decode_tok_s(length), footprint.step_bytes(length, rows) as f64);
            let gain = single.map_or("-".into(), |single| format!("{:.2}x", rate / single));
            let (each, moved) = (rate / rows as f64, bytes * rate / rows as f64 / 1e9);
            println!("{rows:>9} {rate:>10.1} {each:>12.1} {gain:>8} {:>10.1} {moved:>8.1}  {}", bytes / 1e6, found.digest(length));
        }
    }
}

/// Writes what was found so far: after each arm, so that a run that is ended early leaves its figures.
pub fn save(subject: &Subject<'_>, found: &[Found]) -> anyhow::Result<()> {
    let Some(file) = &subject.args.json else { return Ok(()) };
    let arms: Vec<Value> = found.iter().filter(|found| !found.samples.is_empty()).map(arm).collect();
    let document = json!({ "model": subject.name, "decode": subject.args.decode, "rounds": subject.args.rounds, "arms": arms });
    write(file, &serde_json::to_vec_pretty(&document)?)
}

fn arm(found: &Found) -> Value {
    let figures = found.lengths().into_iter().map(|length| {
        let samples: Vec<_> = found.of(length).collect();
        json!({
            "length": length,
            "prefill_tok_s": found.prefill_tok_s(length),
            "decode_tok_s": found.decode_tok_s(length),
            "digest": found.digest(length),
            "samples": samples,
        })
    });
    let figures: Vec<Value> = figures.collect();
    json!({ "arm": found.arm.name, "device": found.device, "sequences": found.arm.rows, "figures": figures })
}

/// The curves of one arm.
pub fn picture(model: &str, found: &Found) -> String {
    let point = |length| Point { length, prefill: found.prefill_tok_s(length), decode: found.decode_tok_s(length) };
    let mut points: Vec<Point> = found.lengths().into_iter().map(point).collect();
    points.sort_by_key(|point| point.length);
    curves::draw(&format!("{model} on {}", found.device), &points)
}
