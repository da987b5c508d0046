//! Random and adversarial output: whatever the model says, in whatever tokens, the parser does not panic,
//! the folded stream does not depend on the cuts, and nothing is invented or lost.

mod support;

use lily_text::OutputOptions;
use support::{Dice, Piece, answer_of, folded, nano, script, with_tools};

const FRAGMENTS: [&str; 46] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "«<think>»",
    "«</think>»",
    "«<tool_call>»",
    "«</tool_call>»",
    "<function=get_weather>",
    "<function=write_file>",
    "<function=unheard_of>",
    "<function=",
    "</function>",
    "</func",
    "<parameter=city>",
    "<parameter=days>",
    "<parameter=text>",
    "<parameter=place>",
    "<parameter=note>",
    "<parameter=x>",
    "<parameter=",
    "</parameter>",
    "</para",
    "<",
    ">",
    "\n",
    "\n\n",
    " ",
    "\r\n",
    "{",
    "}",
    "\"",
    "\\",
    "{\"name\": \"get_weather\", \"arguments\": {}}",
    "stop here",
    "stop",
    "sto",
    "Paris",
    "32",
    "null",
    "Nul",
    "True",
    "[1, 2]",
    "{'a': 1}",
    "é",
    "👨‍👩‍👧",
];

fn options(dice: &mut Dice) -> OutputOptions {
    OutputOptions {
        in_thinking: dice.below(2) == 0,
        tools: if dice.below(4) == 0 { Vec::new() } else { with_tools().tools },
        stop: match dice.below(4) {
            0 => vec!["stop here".into(), "op he".into()],
            1 => vec!["\n\n".into(), "é".into(), "</para".into()],
            _ => Vec::new(),
        },
    }
}

#[test]
fn fragments_in_any_order() {
    let mut dice = Dice::new(11);
    for round in 0..1200 {
        let length = 1 + dice.below(24);
        let text: String = (0..length).map(|_| dice.pick(&FRAGMENTS)).collect();
        answer_of(&script(&text), &options(&mut dice), &format!("round {round}: {text}"));
    }
}

/// Whole calls with fragments thrown in: closer to what a confused model writes.
#[test]
fn damaged_calls() {
    let whole = "Let me see.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\nline\n</parameter>\n\
                 <parameter=mode>\n7\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n\
                 </parameter>\n</function>\n</tool_call>";
    let mut dice = Dice::new(12);
    for round in 0..800 {
        let mut text = whole.to_owned();
        for _ in 0..1 + dice.below(3) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let from = places[dice.below(places.len())];
            let until = places[dice.below(places.len())].clamp(from, (from + 20).min(text.len()));
            let until = (until..=text.len()).find(|at| text.is_char_boundary(*at)).expect("the end is one");
            let fragment = if dice.below(2) == 0 { "" } else { dice.pick(&FRAGMENTS) };
            text.replace_range(from..until, fragment);
        }
        answer_of(&script(&text), &options(&mut dice), &format!("round {round}: {text}"));
    }
}

/// Any tokens at all, special ones and ids without text included.
#[test]
fn random_tokens() {
    let mut dice = Dice::new(13);
    let special = nano().special();
    let tags = [special.think, special.think_end, special.tool_call, special.tool_call_end].map(|tag| tag.expect("a tag"));
    for _ in 0..1200 {
        let length = dice.below(60);
        let token = |dice: &mut Dice| if dice.below(6) == 0 { tags[dice.below(4)] } else { dice.below(nano().vocab() + 50) as u32 };
        let tokens: Vec<u32> = (0..length).map(|_| token(&mut dice)).collect();
        let options = options(&mut dice);
        assert_eq!(folded(&tokens, &options), folded(&tokens, &options));
    }
}

/// Without markup and stops the content is exactly the text of the bytes: U+FFFD stands only where they are
/// no UTF-8.
#[test]
fn random_bytes() {
    let mut dice = Dice::new(14);
    let starts: [&[u8]; 8] = [b"\xF0\x9F", b"\xE2\x82", b"\xC3", b"\x80", b"\xFF", b"a", b"\xF0\x9F\x98\x80", b"\xED\xA0"];
    for round in 0..1200 {
        let mut bytes = b"x".to_vec();
        for _ in 0..dice.below(12) {
            match dice.below(3) {
                0 => bytes.push(dice.below(256) as u8),
                _ => bytes.extend_from_slice(starts[dice.below(starts.len())]),
            }
        }
        // White space at the end waits where tools are offered, and is part of the content where they are not.
        let answer = answer_of(&[Piece::Bytes(bytes.clone())], &OutputOptions::default(), &format!("round {round}"));
        assert_eq!(answer.content, String::from_utf8_lossy(&bytes), "{bytes:x?}");
    }
}

/// Nothing is lost: every letter that is not white space or markup comes out somewhere.
#[test]
fn words_survive() {
    let mut dice = Dice::new(15);
    for round in 0..800 {
        let mut words = Vec::new();
        let mut text = String::new();
        for n in 0..1 + dice.below(16) {
            if dice.below(2) == 0 {
                words.push(format!("w{n}w"));
                text.push_str(words.last().expect("just pushed"));
            }
            text.push_str(dice.pick(&[
                "\n",
                " ",
                "<tool_call>",
                "</tool_call>",
                "</think>",
                "<think>",
                "</function>",
                "</parameter>",
                "<",
                "{",
            ]));
        }
        let mut options = options(&mut dice);
        options.stop.clear();
        let answer = answer_of(&script(&text), &options, &format!("round {round}: {text}"));
        let all = format!("{}{}", answer.reasoning, answer.content);
        for word in words {
            assert_eq!(all.matches(&word).count(), 1, "{word} of {text:?} in {answer:?}");
        }
    }
}
