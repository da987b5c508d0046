//! The tokenizer of the bundled model, what belongs to it, and files that do not fit.

mod support;

use lily_text::{SamplingDefaults, Text, TextError};
use serde_json::{Value, json};
use support::{Dice, nano, read};

fn tokenizer() -> Value {
    serde_json::from_slice(&read("tokenizer.json")).expect("it is JSON")
}

fn load(tokenizer: &Value) -> Result<Text, TextError> {
    Text::load(tokenizer.to_string().as_bytes(), None, None, None, &[], 6144)
}

#[test]
fn text_survives_the_round_trip() {
    let letters = ['a', 'Z', ' ', '\n', '\t', '7', '.', '<', '|', '>', 'é', 'ß', 'Ж', '漢', 'あ', '😀', '\u{200d}', '\u{3000}', '\'', '/'];
    let mut dice = Dice::new(3);
    for length in 0..200 {
        let text: String = (0..length).map(|_| letters[dice.below(letters.len())]).collect();
        let tokens = nano().encode(&text).expect("it encodes");
        assert_eq!(nano().decode(&tokens).expect("it decodes"), text);
        let mut detokenizer = nano().detokenizer();
        let mut pieces = String::new();
        tokens.iter().for_each(|token| detokenizer.push(*token, &mut pieces));
        detokenizer.finish(&mut pieces);
        assert_eq!(pieces, text);
    }
}

/// A pre-tokenizer that backtracks could give up on these.
#[test]
fn long_runs_encode() {
    for unit in [" ", "\n", "a", "7", "!", "\t ", "漢", " \n", "\u{301}"] {
        let text = format!("{}x", unit.repeat(20_000));
        let tokens = nano().encode(&text).expect("it encodes");
        assert_eq!(nano().decode(&tokens).expect("it decodes"), text);
    }
}

#[test]
fn special_tokens_are_found_in_text() {
    let special = nano().special();
    let tokens = nano().encode("<|im_start|>user\nhi<|im_end|><think></think>").expect("it encodes");
    assert_eq!(tokens[0], special.im_start);
    let tail = [special.im_end, special.think.expect("a tag"), special.think_end.expect("a tag")];
    assert_eq!(tokens[tokens.len() - 3..], tail);
    assert!(nano().encode("").expect("it encodes").is_empty());
    assert_eq!(nano().token_bytes(special.im_end).expect("a token"), b"<|im_end|>");
}

#[test]
fn ids_past_the_vocabulary_are_refused() {
    assert!(matches!(nano().decode(&[5, 6144]), Err(TextError::UnknownToken { token: 6144, vocab: 6144 })));
    assert_eq!(nano().vocab(), 6144);
}

#[test]
fn end_tokens_are_united() {
    let special = nano().special();
    let end_of_text = special.end_of_text.expect("the tokenizer has it");
    let both = {
        let mut ids = vec![special.im_end, end_of_text];
        ids.sort_unstable();
        ids
    };
    let eos = |config: &[u32], generation: Value, tokenizer: Value| {
        let (generation, tokenizer) = (generation.to_string(), tokenizer.to_string());
        Text::load(&read("tokenizer.json"), Some(tokenizer.as_bytes()), Some(generation.as_bytes()), None, config, 6144).map(|t| t.eos())
    };
    let im_end = "<|im_end|>";
    assert_eq!(*eos(&[end_of_text], json!({"eos_token_id": special.im_end}), json!({})).expect("it loads"), both[..]);
    assert_eq!(*eos(&[], json!({"eos_token_id": both}), json!({"eos_token": im_end})).expect("it loads"), both[..]);
    assert_eq!(*eos(&[], json!({}), json!({"eos_token": {"content": im_end}})).expect("it loads"), [special.im_end]);
    assert!(eos(&[], json!({"eos_token_id": null}), json!({"eos_token": null})).expect("it loads").is_empty());
    assert!(matches!(eos(&[], json!({"eos_token_id": "x"}), json!({})), Err(TextError::File { .. })));
    assert!(matches!(eos(&[], json!({}), json!({"eos_token": "<stop>"})), Err(TextError::Mismatch(_))));
    assert!(matches!(eos(&[9999], json!({}), json!({})), Err(TextError::Mismatch(_))));
}

#[test]
fn sampling_defaults_are_read() {
    let generation =
        br#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1], "transformers_version": "5"}"#;
    let text = Text::load(&read("tokenizer.json"), None, Some(generation), None, &[], 6144).expect("it loads");
    let expected = SamplingDefaults {
        do_sample: Some(true),
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        ..SamplingDefaults::default()
    };
    assert_eq!(*text.sampling_defaults(), expected);
    let wrong = Text::load(&read("tokenizer.json"), None, Some(br#"{"temperature": "hot"}"#), None, &[], 6144);
    assert!(wrong.err().expect("a wrong type").to_string().contains("generation_config.json"));
}

/// Each damaged file gets an error that names the file or the mismatch.
#[test]
fn files_that_do_not_fit() {
    let said = |loaded: Result<Text, TextError>| loaded.err().expect("it must not load").to_string();
    let edited = |edit: fn(&mut Value)| {
        let mut tokenizer = tokenizer();
        edit(&mut tokenizer);
        said(load(&tokenizer))
    };
    assert!(said(Text::load(b"not json", None, None, None, &[], 6144)).starts_with("tokenizer.json: "));
    assert!(said(Text::load(b"{}", None, None, None, &[], 6144)).starts_with("tokenizer.json: "));
    let small = said(Text::load(&read("tokenizer.json"), None, None, None, &[], 6143));
    assert!(small.contains("6143 rows") && small.contains("6143,"), "{small}");
    let no_marker = edited(|tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
        added.retain(|token| token["content"] != "<|im_end|>");
    });
    assert!(no_marker.contains("lacks the token <|im_end|>"), "{no_marker}");
    let word_pieces = edited(|tokenizer| tokenizer["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
    assert!(word_pieces.contains("byte-level"), "{word_pieces}");
    let stripping = edited(|tokenizer| tokenizer["added_tokens"][0]["lstrip"] = true.into());
    assert!(stripping.contains("lstrip"), "{stripping}");
    let config = said(Text::load(&read("tokenizer.json"), Some(b"[]"), None, None, &[], 6144));
    assert!(config.starts_with("tokenizer_config.json: "), "{config}");
}

#[test]
fn a_text_is_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send + 'static>(_: &T) {}
    shared(nano());
    sent(&nano().output_parser(Default::default()));
    sent(&nano().detokenizer());
}
