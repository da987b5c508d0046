//! lily-nano, part of the program: a tiny model of the real architecture, so that everything works at once.

use lily_model::Checkpoint;

/// A byte array that starts at a cache line: vector loads then never straddle two.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

macro_rules! bundled {
    ($name:literal) => {{
        static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!("../../../models/lily-nano/", $name)));
        ($name, &FILE.0)
    }};
}

pub const NAME: &str = "lily-nano";

/// The bundled files that speak of text: any checkpoint can use them.
pub const TEXT_FILES: [&str; 4] = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// Opens the bundled checkpoint.
pub fn checkpoint() -> anyhow::Result<Checkpoint> {
    let files = [
        bundled!("config.json"),
        bundled!("model.safetensors"),
        bundled!("tokenizer.json"),
        bundled!("tokenizer_config.json"),
        bundled!("generation_config.json"),
        bundled!("chat_template.jinja"),
    ];
    Ok(Checkpoint::from_static(&files)?)
}
