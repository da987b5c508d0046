//! Chat answers: what the model says, as a client gets it, whole and streamed.

use serde_json::{Map, Value, json};

use crate::harness::TestServer;

/// One answer of the model and how it must arrive.
struct Case {
    name: &'static str,
    /// What the model says after the opening of its turn, each piece encoded by itself.
    says: &'static [&'static str],
    /// Added to the request.
    request: Value,
    /// `content`, `reasoning_content`, `tool_calls` (name and arguments) and `finish_reason`.
    expect: Value,
}

fn weather_tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "zip_code": {"type": "string"},
            "detail": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}
        }, "required": ["city"]}
    }}])
}

fn no_thinking(mut more: Value) -> Value {
    more["enable_thinking"] = json!(false);
    more
}

/// Sends the case both ways and compares.
async fn check(server: &TestServer, case: &Case) {
    let key = format!("case <{}>", case.name);
    server.says(&key, case.says);
    let mut request = json!({"messages": [{"role": "user", "content": key}], "temperature": 0});
    request.as_object_mut().unwrap().extend(case.request.as_object().unwrap().clone());

    let whole = server.client().chat(&request).await;
    assert_eq!(whole.status, 200, "{}: {}", case.name, whole.text);
    let whole = whole.json();
    assert_eq!(gist(&whole["choices"][0]["message"], &whole["choices"][0]["finish_reason"]), case.expect, "{}, whole", case.name);

    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let streamed = fold(&server.client().chat(&request).await.events());
    assert_eq!(gist(&streamed["message"], &streamed["finish_reason"]), case.expect, "{}, streamed", case.name);
    for name in ["prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"] {
        assert_eq!(streamed["usage"][name], whole["usage"][name], "{}: usage.{name}", case.name);
    }
}

/// What a case fixes of an answer: call ids are drawn, so they are only checked for being there.
fn gist(message: &Value, finish: &Value) -> Value {
    let mut gist = json!({"content": message["content"], "finish_reason": finish});
    if let Some(reasoning) = message.get("reasoning_content") {
        gist["reasoning_content"] = reasoning.clone();
    }
    if let Some(calls) = message.get("tool_calls") {
        let call = |call: &Value| {
            assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()), "{call}");
            assert_eq!(call["type"], "function");
            let arguments = call["function"]["arguments"].as_str().expect("arguments are a string");
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error} in {arguments:?}"));
            json!({"name": call["function"]["name"], "arguments": arguments})
        };
        gist["tool_calls"] = calls.as_array().unwrap().iter().map(call).collect();
    }
    gist
}

/// Folds chunks as a client does, and holds the stream against its own rules.
pub fn fold(events: &[Value]) -> Value {
    let mut message = Map::new();
    let mut calls: Vec<Value> = Vec::new();
    let (mut finish, mut usage) = (Value::Null, Value::Null);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}), "the role comes first");
    for event in events {
        assert_eq!((&event["id"], &event["object"]), (&events[0]["id"], &json!("chat.completion.chunk")));
        let Some(choice) = event["choices"].get(0) else {
            usage = event["usage"].clone();
            continue;
        };
        assert_eq!(event["usage"], Value::Null, "usage comes once, at the end");
        assert!(finish.is_null(), "nothing follows the finish reason: {event}");
        finish = choice["finish_reason"].clone();
        for name in ["content", "reasoning_content"] {
            if let Some(text) = choice["delta"].get(name).and_then(Value::as_str) {
                let so_far = message.get(name).and_then(Value::as_str).unwrap_or_default();
                message.insert(name.to_owned(), json!(format!("{so_far}{text}")));
            }
        }
        for call in choice["delta"].get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                assert!(
                    call["id"].is_string() && call["function"]["name"].is_string(),
                    "the first delta of a call has id and name: {call}"
                );
                calls.push(call.clone());
            } else {
                assert!(call.get("id").is_none(), "the id comes once: {call}");
                let more = call["function"]["arguments"].as_str().expect("more arguments");
                let so_far = calls[index]["function"]["arguments"].as_str().unwrap();
                calls[index]["function"]["arguments"] = json!(format!("{so_far}{more}"));
            }
        }
    }
    if !calls.is_empty() {
        // A stream has no way to say that there is no content but not to send any.
        if message["content"] == "" {
            message.insert("content".to_owned(), Value::Null);
        }
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    json!({"message": message, "finish_reason": finish, "usage": usage})
}

#[tokio::test]
async fn reasoning_and_content() {
    let server = TestServer::start().await;
    let cases = [
        Case {
            name: "thinks, then answers",
            says: &["Let me see.\n", "</think>", "\n\nIt is four."],
            request: json!({}),
            expect: json!({"content": "It is four.", "reasoning_content": "Let me see.", "finish_reason": "stop"}),
        },
        Case {
            name: "thinking off leaves no reasoning field",
            says: &["It is four."],
            request: no_thinking(json!({})),
            expect: json!({"content": "It is four.", "finish_reason": "stop"}),
        },
        Case {
            name: "cut off inside thinking",
            says: &["one two three four five six seven eight nine ten"],
            request: json!({"max_tokens": 4}),
            expect: json!({"content": "", "reasoning_content": "one two three four", "finish_reason": "length"}),
        },
        Case {
            name: "letters that spell the tag are text",
            says: &["the tag is </", "think> as letters", "</think>", "done </", "think> again"],
            request: json!({}),
            expect: json!({
                "content": "done </think> again", "reasoning_content": "the tag is </think> as letters", "finish_reason": "stop"
            }),
        },
        Case {
            name: "no thought at all",
            says: &["\n", "</think>", "\n\n", "Hello."],
            request: json!({}),
            expect: json!({"content": "Hello.", "finish_reason": "stop"}),
        },
        Case {
            name: "characters of several tokens",
            says: &["hi😀 ", "👨‍👩‍👧", " Привет ", "你好", " naïve"],
            request: no_thinking(json!({})),
            expect: json!({"content": "hi😀 👨‍👩‍👧 Привет 你好 naïve", "finish_reason": "stop"}),
        },
        Case {
            name: "an empty answer",
            says: &[],
            request: no_thinking(json!({})),
            expect: json!({"content": "", "finish_reason": "stop"}),
        },
    ];
    for case in &cases {
        check(&server, case).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn stop_texts() {
    let server = TestServer::start().await;
    let says: &[&str] = &["alpha beta gamma delta"];
    let case = |name, request, content: &str, finish: &str| Case {
        name,
        says,
        request: no_thinking(request),
        expect: json!({"content": content, "finish_reason": finish}),
    };
    let cases = [
        case("stop as an array", json!({"stop": ["beta gamma"]}), "alpha ", "stop"),
        case("stop as a string", json!({"stop": "gamma"}), "alpha beta ", "stop"),
        case("stop null", json!({"stop": null}), "alpha beta gamma delta", "stop"),
        case("stop empty", json!({"stop": ["", null]}), "alpha beta gamma delta", "stop"),
        case("stop that only begins", json!({"stop": ["delta force"]}), "alpha beta gamma delta", "stop"),
        case("the earliest of two", json!({"stop": ["delta", "beta"]}), "alpha ", "stop"),
        Case {
            name: "not inside thinking",
            says: &["beta", "</think>", "alpha beta"],
            request: json!({"stop": "beta"}),
            expect: json!({"content": "alpha ", "reasoning_content": "beta", "finish_reason": "stop"}),
        },
    ];
    for case in &cases {
        check(&server, case).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn tool_calls() {
    let server = TestServer::start().await;
    let tools = || json!({"tools": weather_tools()});
    let with = |name: &str, value: Value| {
        let mut request = tools();
        request[name] = value;
        no_thinking(request)
    };
    let call = |city: &str| json!({"name": "weather", "arguments": {"city": city}});
    let cases = [
        Case {
            name: "a call",
            says: &["<tool_call>", "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", "</tool_call>"],
            request: no_thinking(tools()),
            expect: json!({"content": null, "tool_calls": [call("Oslo")], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "thought, words and a call",
            says: &[
                "I need the weather.\n",
                "</think>",
                "\n\nLooking.\n\n",
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n",
                "</tool_call>",
            ],
            request: tools(),
            expect: json!({
                "content": "Looking.", "reasoning_content": "I need the weather.", "tool_calls": [call("Oslo")],
                "finish_reason": "tool_calls"
            }),
        },
        Case {
            name: "values by their schema",
            says: &[
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n32\n</parameter>\n\
                <parameter=zip_code>\n03106\n</parameter>\n<parameter=detail>\ntrue\n</parameter>\n\
                <parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n</function>\n",
                "</tool_call>",
            ],
            request: no_thinking(tools()),
            expect: json!({
                "content": null, "finish_reason": "tool_calls",
                "tool_calls": [{"name": "weather", "arguments": {
                    "city": "Rome", "days": 32, "zip_code": "03106", "detail": true, "tags": ["a", "b"]
                }}]
            }),
        },
        Case {
            name: "a value that does not fit stays as it is",
            says: &["<tool_call>", "\n<function=weather>\n<parameter=days>\n2026-01-15\n</parameter>\n</function>\n", "</tool_call>"],
            request: no_thinking(tools()),
            expect: json!({
                "content": null, "finish_reason": "tool_calls",
                "tool_calls": [{"name": "weather", "arguments": {"days": "2026-01-15"}}]
            }),
        },
        Case {
            name: "markup inside a value, and a missing end of a parameter",
            says: &[
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\n<div class=\"a\">&amp; x < y</div>\n</function>\n",
                "</tool_call>",
            ],
            request: no_thinking(tools()),
            expect: json!({
                "content": null, "finish_reason": "tool_calls",
                "tool_calls": [{"name": "weather", "arguments": {"city": "<div class=\"a\">&amp; x < y</div>"}}]
            }),
        },
        Case {
            name: "two calls",
            says: &[
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n",
                "</tool_call>",
                "\n",
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n",
                "</tool_call>",
            ],
            request: no_thinking(tools()),
            expect: json!({"content": null, "tool_calls": [call("Oslo"), call("Rome")], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "one call where the client wants one",
            says: &[
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n",
                "</tool_call>",
                "\n",
                "<tool_call>",
                "\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n",
                "</tool_call>",
            ],
            request: with("parallel_tool_calls", json!(false)),
            expect: json!({"content": null, "tool_calls": [call("Oslo")], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "an unknown wrapper is content",
            says: &["<function_invocation>\n<name>weather</name>\n</function_invocation>"],
            request: no_thinking(tools()),
            expect: json!({"content": "<function_invocation>\n<name>weather</name>\n</function_invocation>", "finish_reason": "stop"}),
        },
        Case {
            name: "a call inside an unknown wrapper is found",
            says: &["<function_invocation>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"],
            request: no_thinking(tools()),
            expect: json!({"content": "<function_invocation>", "tool_calls": [call("Oslo")], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "a call without its first tag",
            says: &["<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", "</tool_call>"],
            request: no_thinking(tools()),
            expect: json!({"content": null, "tool_calls": [call("Oslo")], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "a tool that the request does not have",
            says: &["<tool_call>", "\n<function=tides>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", "</tool_call>"],
            request: no_thinking(tools()),
            expect: json!({"content": null, "tool_calls": [{"name": "tides", "arguments": {"city": "Oslo"}}], "finish_reason": "tool_calls"}),
        },
        Case {
            name: "no tools, no calls",
            says: &["<tool_call>", "\n<function=weather>\n</function>\n", "</tool_call>"],
            request: no_thinking(json!({})),
            expect: json!({"content": "<tool_call>\n<function=weather>\n</function>\n</tool_call>", "finish_reason": "stop"}),
        },
        Case {
            name: "tool_choice none",
            says: &["No tool today."],
            request: with("tool_choice", json!("none")),
            expect: json!({"content": "No tool today.", "finish_reason": "stop"}),
        },
    ];
    for case in &cases {
        check(&server, case).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn long_arguments_come_in_several_deltas() {
    let server = TestServer::start().await;
    let value = "line of text with <tags> & signs\n".repeat(120);
    let call = format!("\n<function=weather>\n<parameter=city>\n{value}</parameter>\n</function>\n");
    server.says("long", &["<tool_call>", &call, "</tool_call>"]);
    let request = json!({
        "messages": [{"role": "user", "content": "long"}], "tools": weather_tools(), "enable_thinking": false, "stream": true
    });
    let events = server.client().chat(&request).await.events();
    let deltas = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some()).count();
    assert!(deltas > 10, "{deltas} deltas");
    let arguments = fold(&events)["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned();
    let arguments: Value = serde_json::from_str(&arguments).expect("valid JSON");
    assert_eq!(arguments["city"], value.trim_end_matches('\n'));
    server.stop().await;
}

#[tokio::test]
async fn text_is_sent_as_soon_as_it_is_certain() {
    let server = TestServer::start().await;
    let gate = std::sync::Arc::new(crate::device::Gate::default());
    let answer = crate::harness::answer(&["hi", "😀"]);
    server.script(crate::device::Script { key: "wait".to_owned(), waits_at: Some((1, gate.clone())), answer, ..Default::default() });
    let request = json!({"messages": [{"role": "user", "content": "wait"}], "enable_thinking": false, "stream": true});
    let mut stream = server.client().stream("/v1/chat/completions", &request).await;
    let first = stream.until(|event| event["choices"][0]["delta"]["content"] == "hi").await;
    assert!(first, "\"hi\" came while the model still worked on what follows");
    gate.open();
    assert!(stream.until(|event| event["choices"][0]["delta"]["content"] == "😀").await);
    server.stop().await;
}

#[tokio::test]
async fn an_answer_in_unusual_tokens_is_found_again() {
    let server = TestServer::start().await;
    // Letter by letter: the encoder would never write it like this.
    let letters: Vec<String> = "The quick brown fox jumps over the lazy dog.".chars().map(String::from).collect();
    server.says("first", &letters.iter().map(String::as_str).collect::<Vec<_>>());
    server.says("second", &["fine"]);
    let mut messages = vec![json!({"role": "user", "content": "first"})];
    let body = |messages: &[Value]| json!({"messages": messages, "temperature": 0, "enable_thinking": false, "preserve_thinking": true});
    let first = server.client().chat(&body(&messages)).await.json();
    messages.push(json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]}));
    messages.push(json!({"role": "user", "content": "second"}));
    let second = server.client().chat(&body(&messages)).await.json();
    let before = first["usage"]["total_tokens"].as_u64().unwrap();
    // All but the end token, which the engine has not taken in.
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(), Some(before - 1), "{second}");
    assert_eq!(second["choices"][0]["message"]["content"], "fine");
    server.stop().await;
}
