//! The smallest tokenizer that a chat needs: one token per byte, plus the special tokens of the architecture.

use serde_json::{Value, json};

/// The added tokens, from id 256 on, with whether the tokenizer file calls them special.
const ADDED: [(&str, bool); 9] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
];

/// Ids this tokenizer uses; a model needs at least as many rows.
pub(super) const TOKENS: usize = 256 + ADDED.len();

/// Id of `<|endoftext|>`.
pub(super) const END_OF_TEXT: usize = 256;
/// Id of `<|im_end|>`.
pub(super) const IM_END: usize = 258;

/// A tokenizer.json of byte-level BPE without merges: byte `b` has id `b`.
pub fn byte_tokenizer_json() -> Value {
    let vocab: serde_json::Map<String, Value> = (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    let added: Vec<Value> = (256..).zip(ADDED).map(|(id, (content, special))| added_token(id, content, special)).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

/// The printable character that byte-level BPE writes for a byte: itself where printable, else from U+0100 up.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or('?')
}
