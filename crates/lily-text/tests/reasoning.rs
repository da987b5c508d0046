//! The split of thinking and content, stop texts, and characters that tokens cut.

mod support;

use lily_text::{Answer, OutputEvent, OutputOptions};
use support::{Piece, answer, answer_of, events, nano, script, tokenize, with_tools};

fn thinking() -> OutputOptions {
    OutputOptions { in_thinking: true, ..OutputOptions::default() }
}

fn stops(stop: &[&str]) -> OutputOptions {
    OutputOptions { stop: stop.iter().map(|s| (*s).to_owned()).collect(), ..OutputOptions::default() }
}

#[test]
fn reasoning_and_content() {
    let cases = [
        ("First.\n</think>\n\nThe answer.", "First.", "The answer."),
        ("\nFirst.\n\nSecond.\n\n</think>\n\n\nThe answer.\n", "First.\n\nSecond.", "The answer.\n"),
        ("</think>\n\nAt once.", "", "At once."),
        ("\n\n</think>\n\nAt once.", "", "At once."),
        ("Cut short", "Cut short", ""),
        ("Cut short \n", "Cut short", ""),
        ("", "", ""),
        ("<think>\nThe tag again.\n</think>\nOk.", "The tag again.", "Ok."),
        ("It says «</think>» here.\n</think>\n\nOk.", "It says </think> here.", "Ok."),
        ("A <think> inside.\n</think>\n\nOk.", "A <think> inside.", "Ok."),
        ("One.\n</think>\n\nTags: «<think>» and «</think>».", "One.", "Tags: <think> and </think>."),
        ("One.\n</think>\n\nTags: <think> and </think>.", "One.", "Tags: <think> and </think>."),
        ("One.\n</think>\n\n</think>\nTwice.", "One.", "Twice."),
        ("One.\n</think>\n\n<think>\nTwo.\n</think>\n\nOk.", "One.\n\nTwo.", "Ok."),
        ("One.\n</think>\n\n    indented()\n", "One.", "    indented()\n"),
        ("One.\n</think>\n \n  {\"a\": 1}", "One.", "  {\"a\": 1}"),
    ];
    for (text, reasoning, content) in cases {
        let found = answer(text, &thinking());
        assert_eq!((found.reasoning.as_str(), found.content.as_str()), (reasoning, content), "{text:?}");
    }
}

#[test]
fn thinking_off() {
    let cases = [
        ("The answer.", "", "The answer."),
        ("Text with </think> in it.", "", "Text with </think> in it."),
        ("</think>\n\nThe answer.", "", "The answer."),
        ("\n\nThe answer.", "", "The answer."),
        ("   \n", "", ""),
        ("<think>\nAll the same.\n</think>\n\nThe answer.", "All the same.", "The answer."),
    ];
    for (text, reasoning, content) in cases {
        let found = answer(text, &OutputOptions::default());
        assert_eq!((found.reasoning.as_str(), found.content.as_str()), (reasoning, content), "{text:?}");
    }
}

#[test]
fn control_tokens_say_nothing() {
    let special = nano().special();
    let mut pieces = script("Hello");
    pieces.push(Piece::Tag(special.im_end));
    pieces.extend(script(" world"));
    pieces.push(Piece::Tag(special.end_of_text.expect("the tokenizer has it")));
    assert_eq!(answer_of(&pieces, &OutputOptions::default(), "control").content, "Hello world");
}

#[test]
fn stop_texts() {
    let cases: [(&str, &[&str], &str, Option<&str>); 17] = [
        ("alpha beta gamma delta", &["beta gamma"], "alpha ", Some("beta gamma")),
        ("alpha beta gamma delta", &["beta gamut"], "alpha beta gamma delta", None),
        ("alpha beta", &["beta gamma"], "alpha beta", None),
        ("alpha", &["alpha"], "", Some("alpha")),
        ("alpha", &[""], "alpha", None),
        ("ab ab abc", &["abc"], "ab ab ", Some("abc")),
        ("aaab", &["aab"], "a", Some("aab")),
        ("one\n\ntwo", &["\n\n"], "one", Some("\n\n")),
        ("one two three", &["three", "two"], "one ", Some("two")),
        ("abcd", &["abcd", "bc"], "a", Some("bc")),
        ("abcd", &["d", "bcd"], "a", Some("bcd")),
        ("naïve 😀 end", &["😀"], "naïve ", Some("😀")),
        ("naïve 😀 end", &["😁"], "naïve 😀 end", None),
        ("Привет мир", &["мир"], "Привет ", Some("мир")),
        ("say </think> now", &["</think>"], "say ", Some("</think>")),
        ("\n\nfirst\nsecond", &["\n"], "first", Some("\n")),
        ("User: hi\nUser: again", &["\nUser:"], "User: hi", Some("\nUser:")),
    ];
    for (text, stop, content, matched) in cases {
        let found = answer(text, &stops(stop));
        assert_eq!((found.content.as_str(), found.stop.as_deref()), (content, matched), "{text:?} with {stop:?}");
    }
}

#[test]
fn stop_texts_leave_thinking_and_arguments_alone() {
    let options = OutputOptions { in_thinking: true, stop: vec!["stop".into()], ..with_tools() };
    let found = answer("Should I stop? No.\n</think>\n\nNever stop now.", &options);
    assert_eq!(found.reasoning, "Should I stop? No.");
    assert_eq!((found.content.as_str(), found.stop.as_deref()), ("Never ", Some("stop")));

    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nstop\n</parameter>\n</function>\n</tool_call>";
    let found = answer(&format!("x\n</think>\n\nA sto{call}"), &options);
    assert_eq!((found.content.as_str(), found.tool_calls.len(), found.stop), ("A sto", 1, None));
}

#[test]
fn ambiguous_text_waits_and_no_other() {
    let deltas = |text: &str, options: OutputOptions| -> Vec<String> {
        let tokens = tokenize(&script(text), 1, None);
        let texts = events(&tokens, options).into_iter().map(|event| match event {
            OutputEvent::Content(text) => text,
            other => panic!("{other:?}"),
        });
        texts.collect()
    };
    assert_eq!(deltas("hi😀!", OutputOptions::default()), ["h", "i", "😀", "!"]);
    assert_eq!(deltas("abxay", stops(&["abc"])), ["abx", "ay"]);
    assert_eq!(deltas("a b", with_tools()), ["a", " b"], "before a possible call, white space waits");
    assert_eq!(deltas("a<b", with_tools()), ["a", "<", "b"], "no call begins inside a line");
    assert_eq!(deltas("<fun>", with_tools()), ["<fun>"]);
}

#[test]
fn characters_are_never_cut() {
    let texts =
        ["hi😀", "👨‍👩‍👧‍👦 family", "Привет, мир", "漢字かな交じり文", "e\u{301}\u{302}", "नमस्ते", "\u{10FFFF}\u{FDD0}\u{FEFF}", "a\u{FFFD}b"];
    for text in texts {
        assert_eq!(answer(text, &OutputOptions::default()).content, text);
        let thought = answer(text, &thinking());
        assert_eq!((thought.reasoning.as_str(), thought.content.as_str()), (text, ""));
    }
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    let cases: [(&[u8], &str); 8] = [
        (b"a\xFFb", "a\u{FFFD}b"),
        (b"a\xF0\x9F\x98", "a\u{FFFD}"),
        (b"a\xF0\x9F\x98b", "a\u{FFFD}b"),
        (b"a\xC3", "a\u{FFFD}"),
        (b"\xC3\xC3\xA9", "\u{FFFD}é"),
        (b"\xED\xA0\x80", "\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xF8\xF9\xFA\xFB", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xE2\x82\xE2\x82\xAC", "\u{FFFD}€"),
    ];
    for (bytes, text) in cases {
        let pieces = [Piece::Bytes(bytes.to_vec())];
        assert_eq!(String::from_utf8_lossy(bytes), text);
        assert_eq!(answer_of(&pieces, &OutputOptions::default(), text).content, text);
    }
    // What can never become a character is replaced at once.
    let tokens = tokenize(&[Piece::Bytes(b"a\xFF".to_vec())], 1, None);
    let mut parser = nano().output_parser(OutputOptions::default());
    let mut events = Vec::new();
    tokens.iter().for_each(|token| parser.push(*token, &mut events));
    assert_eq!(events.last(), Some(&OutputEvent::Content("\u{FFFD}".into())));
    // A tag proves that the character before it stays unfinished.
    let special = nano().special();
    let pieces = [Piece::Bytes(b"x\xF0\x9F".to_vec()), Piece::Tag(special.think_end.expect("a tag")), Piece::Bytes(b"y".to_vec())];
    let found = answer_of(&pieces, &thinking(), "cut by a tag");
    assert_eq!((found.reasoning.as_str(), found.content.as_str()), ("x\u{FFFD}", "y"));
}

#[test]
fn completions_pass_everything() {
    let run = |text: &str, stop: &[&str]| -> Answer {
        let mut parser = nano().completion_parser(stop.iter().map(|s| (*s).to_owned()).collect());
        let mut events = Vec::new();
        for token in tokenize(&script(text), 4, None) {
            parser.push(token, &mut events);
        }
        parser.finish(&mut events);
        events.into_iter().collect()
    };
    let text = "\n\n <think>x</think> <tool_call>\n<function=f>\n ";
    assert_eq!(run(text, &[]).content, text);
    assert_eq!(run("one two three", &["two"]).content, "one ");
}

#[test]
fn after_the_end_nothing_comes() {
    let mut parser = nano().output_parser(stops(&["end"]));
    let mut events = Vec::new();
    for token in tokenize(&script("the end and more"), 1, None) {
        parser.push(token, &mut events);
    }
    assert!(parser.is_stopped());
    let count = events.len();
    parser.finish(&mut events);
    parser.finish(&mut events);
    assert_eq!(events.len(), count);
    let answer: Answer = events.into_iter().collect();
    assert_eq!((answer.content.as_str(), answer.stop.as_deref()), ("the ", Some("end")));
}
