//! Prints how far the f64 reference is from transformers and mlx-lm on every golden: the table of tools/goldens/README.md.
//!
//! `cargo run -p lily-testkit --example agreement`

use lily_testkit::TestkitError;
use lily_testkit::checkpoint::load_model;
use lily_testkit::golden::{Comparison, Golden, TINY, compare, worst_row};
use lily_testkit::reference::{Model, Trace};

fn main() -> Result<(), TestkitError> {
    println!("golden     logits against                      worst row   worst layer tensor");
    for name in TINY {
        let golden = Golden::load(name)?;
        let model = load_model(&golden.directory)?;
        let mut trace = Trace::on();
        let logits = model.forward(&golden.sequences[0].tokens, &mut model.state(), &mut trace);
        let vocab = model.dims.vocab;
        let against = |theirs: &str| golden.tensor(&format!("sequences.0.logits.{theirs}"));
        let layers = worst_layer_tensor(&golden, &model, &trace);
        for theirs in ["transformers", "mlx"] {
            let whole = compare(theirs, &logits, against(theirs)).relative;
            let row = worst_row(theirs, &logits, against(theirs), vocab).relative;
            println!("{name:10} {theirs:20} {whole:.1e}            {row:.1e}     {} {:.1e}", layers.name, layers.relative);
        }
        let both = compare("both", against("mlx"), against("transformers")).relative;
        println!("{name:10} mlx to transformers  {both:.1e}");
    }
    Ok(())
}

fn worst_layer_tensor(golden: &Golden, model: &Model, trace: &Trace) -> Comparison {
    let names = trace.names().filter(|name| golden.has(name));
    let compared = names.map(|name| {
        let ours = golden.rows_at_positions(trace.get(name).unwrap_or_default(), model.dims.hidden);
        compare(name, &ours, golden.tensor(name))
    });
    compared.max_by(|a, b| a.relative.total_cmp(&b.relative)).expect("goldens of tiny checkpoints hold layer tensors")
}
