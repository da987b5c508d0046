//! Tool calls: the format, its tolerated variants, the conversion of values, and what passes as text.

mod support;

use lily_text::{Answer, OutputEvent, OutputOptions};
use serde_json::{Value, json};
use support::{answer, events, script, tokenize, with_tools};

fn call_of(answer: &Answer) -> (String, Value) {
    let call = &answer.tool_calls[0];
    (call.name.clone(), serde_json::from_str(&call.arguments).expect("valid JSON"))
}

/// A script that must give exactly this content and these calls.
fn check(text: &str, content: &str, calls: &[(&str, Value)]) {
    let answer = answer(text, &with_tools());
    let found: Vec<(&str, Value)> =
        answer.tool_calls.iter().map(|call| (call.name.as_str(), serde_json::from_str(&call.arguments).expect("valid JSON"))).collect();
    assert_eq!(found, calls, "the calls of {text:?}");
    assert_eq!(answer.content, content, "the content of {text:?}");
    assert_eq!(answer.reasoning, "", "the reasoning of {text:?}");
}

fn call(parameters: &str) -> String {
    format!("<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn well_formed() {
    let paris = || ("get_weather", json!({"city": "Paris"}));
    let one = call("<parameter=city>\nParis\n</parameter>\n");
    check(&one, "", &[paris()]);
    check(&format!("Let me look.\n\n{one}"), "Let me look.", &[paris()]);
    check(&format!("\n\n{one}\n"), "", &[paris()]);
    check(&format!("{one}\n{one}"), "", &[paris(), paris()]);
    check(&format!("{one}\n\nDone."), "Done.", &[paris()]);
    check(&format!("First.\n{one}\n\nDone."), "First.\nDone.", &[paris()]);
    check(&format!("First.{one}\nDone."), "First.\nDone.", &[paris()]);
    check(&call(""), "", &[("get_weather", json!({}))]);
    let two = call("<parameter=city>\nNew York\n</parameter>\n<parameter=days>\n32\n</parameter>\n");
    check(&two, "", &[("get_weather", json!({"city": "New York", "days": 32}))]);
}

#[test]
fn tolerated_variants() {
    let paris = || ("get_weather", json!({"city": "Paris"}));
    let cases = [
        // no </parameter>
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        // no line breaks
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        // no <tool_call>
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        // neither of them
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        // no </function>
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
        // no </tool_call>
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        // no end at all
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</tool_call>",
        // the end spelled out
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n«</tool_call>»",
        // no > after a name
        "<tool_call>\n<function=get_weather\n<parameter=city\nParis\n</parameter>\n</function>\n</tool_call>",
        // quotes around names
        "<tool_call>\n<function=\"get_weather\">\n<parameter='city'>\nParis\n</parameter>\n</function>\n</tool_call>",
        // Windows line ends
        "<tool_call>\r\n<function=get_weather>\r\n<parameter=city>\r\nParis\r\n</parameter>\r\n</function>\r\n</tool_call>",
        // the other formats of the family
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}",
        "<tool_call>\n<function=get_weather>\n{\"city\": \"Paris\"}\n</function>\n</tool_call>",
        // indented
        "  <function=get_weather>\n  <parameter=city>Paris</parameter>\n  </function>",
    ];
    for text in cases {
        check(text, "", &[paris()]);
    }
    // no </parameter> between two parameters
    let text = call("<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n");
    check(&text, "", &[("get_weather", json!({"city": "Paris", "days": 3}))]);
    // two functions in one block
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n\
                <function=get_weather>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>";
    check(text, "", &[paris(), ("get_weather", json!({"days": 1}))]);
    // a new call where the old one was never closed
    let text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<tool_call>\n\
                <function=get_weather>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>";
    check(text, "", &[paris(), ("get_weather", json!({"days": 1}))]);
    // an unknown tool is kept: the client may know it
    let text = "<tool_call>\n<function=launch>\n<parameter=count>\n10\n</parameter>\n</function>\n</tool_call>";
    check(text, "", &[("launch", json!({"count": "10"}))]);
}

#[test]
fn values_by_schema() {
    let cases = [
        ("zip_code", "03106", json!("03106")),
        ("zip_code", "12345", json!("12345")),
        ("zip_code", "null", json!("null")),
        ("city", "true", json!("true")),
        ("city", " two  blanks ", json!(" two  blanks ")),
        ("city", "", json!("")),
        ("city", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("days", "32", json!(32)),
        ("days", "-4", json!(-4)),
        ("days", "32.0", json!(32)),
        ("days", " 7 ", json!(7)),
        ("days", "2026-01-15", json!("2026-01-15")),
        ("days", "3.5", json!("3.5")),
        ("days", "007", json!("007")),
        ("days", "123456789012345678", json!(123456789012345678i64)),
        ("days", "", json!("")),
        ("days", "null", json!("null")),
        ("limit", "2.5", json!(2.5)),
        ("limit", "2", json!(2)),
        ("limit", "1e3", json!(1e3)),
        ("limit", "1e999", json!("1e999")),
        ("limit", "NaN", json!("NaN")),
        ("metric", "true", json!(true)),
        ("metric", "True", json!(true)),
        ("metric", "False", json!(false)),
        ("metric", "yes", json!("yes")),
        ("tags", "[\"a\", \"b\"]", json!(["a", "b"])),
        ("tags", "['a', 'it\\'s']", json!(["a", "it's"])),
        ("tags", "a, b", json!("a, b")),
        ("tags", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("tags", "[1, 2", json!("[1, 2")),
        ("place", "{\"lat\": 1.5, \"deep\": [null, {\"x\": \"<b>\"}]}", json!({"lat": 1.5, "deep": [null, {"x": "<b>"}]})),
        ("place", "{'lat': 1.5, 'ok': True, 'none': None}", json!({"lat": 1.5, "ok": true, "none": null})),
        ("place", "{\n  \"lat\": 2\n}", json!({"lat": 2})),
        ("place", "somewhere", json!("somewhere")),
        ("note", "null", json!(null)),
        ("note", "None", json!(null)),
        ("note", "nullify", json!("nullify")),
        ("note", "none of it", json!("none of it")),
        ("note", "5", json!("5")),
        ("since", "5", json!(5)),
        ("since", "null", json!(null)),
        ("since", "today", json!("today")),
        ("mode", "2", json!(2)),
        ("mode", "auto", json!("auto")),
        ("any", "5", json!(5)),
        ("any", "[1]", json!([1])),
        ("any", "05", json!("05")),
        ("any", "plain words", json!("plain words")),
        ("unheard_of", "5", json!("5")),
    ];
    for (name, text, expected) in cases {
        check(&call(&format!("<parameter={name}>\n{text}\n</parameter>\n")), "", &[("get_weather", json!({ name: expected }))]);
    }
}

#[test]
fn values_are_free_text() {
    let page: String = (0..120).map(|n| format!("<div class=\"row\" id='{n}'>a & b < c && d > e</div>\n")).collect();
    let values = [
        page.as_str(),
        "line one\n\nline three\n",
        "\n\nleading lines",
        "if (a < b && c > d) { return \"</div>\"; }",
        "</div>\n</function",
        "< / parameter>",
        "</parameter> is how a value ends",
        "a\n</parameter>\nb",
        "a </function> b",
        "a\n</function>\nb",
        "</parameter></parameter>\nx",
        "<parameter=",
        "<parameter=path> as text",
        "x\n<parameter=unknown>\ny",
        "see <tool_call> and </tool_call> in the docs",
        "think <think>so</think> then",
        "«<tool_call>» and «</tool_call>» spelled out",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nis an example",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>\nis another",
        "«<tool_call>»\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n«</tool_call>»\nis spelled",
        "text with <function= in it",
        "tabs\tand \\ backslashes \"quoted\" \u{1} control",
        "Кириллица 漢字 👨‍👩‍👧 é",
        "ends with <",
        "ends with </",
        "ends with </para",
    ];
    for value in values {
        let text = format!(
            "<tool_call>\n<function=write_file>\n<parameter=text>\n{value}\n</parameter>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"
        );
        let last = format!("<tool_call>\n<function=write_file>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>");
        let plain = value.replace(['«', '»'], "");
        check(&text, "", &[("write_file", json!({"text": plain, "path": "a.txt"}))]);
        check(&last, "", &[("write_file", json!({"text": plain}))]);
    }
    // An example that one value leaves open is forgotten with the next.
    let text = "<tool_call>\n<function=write_file>\n<parameter=text>\nsee <function= there\n</parameter>\n<parameter=path>\na.txt\n\
                </parameter>\n</function>\n</tool_call>\nDone.";
    check(text, "Done.", &[("write_file", json!({"text": "see <function= there", "path": "a.txt"}))]);
}

#[test]
fn what_is_no_call_is_content() {
    let cases = [
        ("<tool_call> is the tag.", "<tool_call> is the tag."),
        ("Use <tool_call>\nlike this</tool_call> please", "Use <tool_call>\nlike this</tool_call> please"),
        ("<tool_call>\n<function=get_we", "<tool_call>\n<function=get_we"),
        ("<tool_call>\n<function=>\n</function>", "<tool_call>\n<function=>\n</function>"),
        (
            "<tool_call>\n<function=get_weather>\nParis\n</function>\n</tool_call>",
            "<tool_call>\n<function=get_weather>\nParis\n</function>\n</tool_call>",
        ),
        ("<tool_call>\n{\"name\": 5}\n</tool_call>", "<tool_call>\n{\"name\": 5}\n</tool_call>"),
        ("<tool_call>\n{broken", "<tool_call>\n{broken"),
        ("<function_invocation>\n{\"x\": 1}\n</function_invocation>", "<function_invocation>\n{\"x\": 1}\n</function_invocation>"),
        (
            "<function=unheard_of>\n<parameter=a>\n1\n</parameter>\n</function>",
            "<function=unheard_of>\n<parameter=a>\n1\n</parameter>\n</function>",
        ),
        ("Inline <function=get_weather> is text", "Inline <function=get_weather> is text"),
        ("<function=get_weathers>\n", "<function=get_weathers>\n"),
        ("A line\n<function=get_weather> alone", "A line\n<function=get_weather> alone"),
        ("</tool_call> alone", "</tool_call> alone"),
        ("«<tool_call>» spelled", "<tool_call> spelled"),
        ("a < b and </b>", "a < b and </b>"),
        ("<", "<"),
    ];
    for (text, content) in cases {
        check(text, content, &[]);
    }
    // An unknown wrapper around a call is text, the call is a call.
    check(
        "<function_calls>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</function_calls>",
        "<function_calls>\n</function_calls>",
        &[("get_weather", json!({"city": "Paris"}))],
    );
}

#[test]
fn without_tools_markup_is_content() {
    let text = "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>";
    let answer = answer(text, &OutputOptions::default());
    assert_eq!((answer.content.as_str(), answer.tool_calls.len()), (text, 0));
}

#[test]
fn truncated_calls_stay_valid() {
    let whole = "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n</parameter>\n<parameter=days>\n32\n</parameter>\n\
                 <parameter=place>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>";
    let known = "<tool_call>\n<function=get_weather>".len();
    for end in known + 1..=whole.len() {
        let text = &whole[..end];
        // A cut inside the last tag would spell a part of a token.
        if whole.len() - end < "</tool_call>".len() && end < whole.len() {
            continue;
        }
        let (name, arguments) = call_of(&answer(text, &with_tools()));
        assert_eq!(name, "get_weather");
        let city = arguments.get("city").map_or("", |city| city.as_str().expect("a string"));
        assert!("New \"York\"".starts_with(city), "{text:?} gives {arguments}");
    }
}

#[test]
fn thinking_that_forgets_to_end() {
    let text = "I should look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
    let options = OutputOptions { in_thinking: true, ..with_tools() };
    let forgotten = answer(text, &options);
    assert_eq!(forgotten.reasoning, "I should look.");
    assert_eq!(forgotten.content, "");
    assert_eq!(call_of(&forgotten).1, json!({"city": "Paris"}));

    let mentioned = answer("The <tool_call> tag.\n</think>\n\nYes.", &options);
    assert_eq!((mentioned.reasoning.as_str(), mentioned.content.as_str()), ("The <tool_call> tag.", "Yes."));

    let both = answer("Look.\n</think>\n\n<tool_call>\n<function=get_weather>\n</function>\n</tool_call>", &options);
    assert_eq!((both.reasoning.as_str(), both.content.as_str(), both.tool_calls.len()), ("Look.", "", 1));
}

#[test]
fn long_arguments_stream() {
    let long = "word ".repeat(500);
    let text = format!("<tool_call>\n<function=write_file>\n<parameter=text>\n{long}\n</parameter>\n</function>\n</tool_call>");
    let events = events(&tokenize(&script(&text), 8, None), with_tools());
    assert!(matches!(&events[0], OutputEvent::ToolCallStart { index: 0, name, .. } if name == "write_file"));
    let deltas = events.iter().filter(|event| matches!(event, OutputEvent::ToolCallArguments { .. })).count();
    assert!(deltas > 100, "{deltas} deltas");
    let nullable = call(&format!("<parameter=note>\n{long}\n</parameter>\n"));
    let events = support::events(&tokenize(&script(&nullable), 8, None), with_tools());
    assert!(events.len() > 100, "a string that may be null streams too: {} events", events.len());
}
