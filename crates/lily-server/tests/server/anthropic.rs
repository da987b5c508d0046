//! Anthropic's API: the same engine, other words.

use serde_json::{Map, Value, json};

use crate::client::Reply;
use crate::harness::{Setup, TestServer, answer, text};

/// Named events of a stream, as (name, data); name and type must agree.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8", "{}", reply.text);
    let read = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let (name, data) = (name.strip_prefix("event: ").expect("a name"), data.strip_prefix("data: ").expect("data"));
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name);
        (name.to_owned(), data)
    };
    reply.text.split_terminator("\n\n").map(read).collect()
}

/// Folds a stream into a message as the SDK does.
fn fold(events: &[(String, Value)]) -> Value {
    assert_eq!(events[0].0, "message_start");
    assert_eq!(events.last().unwrap().0, "message_stop");
    let mut message = events[0].1["message"].clone();
    let mut inputs: Map<String, Value> = Map::new();
    for (name, event) in events {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "content_block_start" => {
                assert_eq!(message["content"].as_array().unwrap().len(), index, "blocks come in order");
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                for name in ["text", "thinking"] {
                    if let Some(more) = delta[name].as_str() {
                        let so_far = message["content"][index][name].as_str().expect("a block of this kind").to_owned();
                        message["content"][index][name] = json!(so_far + more);
                    }
                }
                if let Some(more) = delta["partial_json"].as_str() {
                    let so_far = inputs.entry(index.to_string()).or_insert(json!(""));
                    *so_far = json!(format!("{}{more}", so_far.as_str().unwrap()));
                }
            }
            "content_block_stop" => {
                if let Some(input) = inputs.get(&index.to_string()) {
                    message["content"][index]["input"] = serde_json::from_str(input.as_str().unwrap()).expect("whole JSON");
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_start" | "message_stop" | "ping" => {}
            other => panic!("unexpected event {other}"),
        }
    }
    message
}

/// Sends it both ways; returns content, stop reason and stop sequence, which must agree.
async fn both(server: &TestServer, mut request: Value) -> Value {
    request["temperature"] = json!(0);
    let gist = |message: &Value| {
        let mut content = message["content"].clone();
        for block in content.as_array_mut().unwrap() {
            if let Some(id) = block.as_object_mut().unwrap().remove("id") {
                assert!(id.as_str().is_some_and(|id| !id.is_empty()));
            }
        }
        json!({"content": content, "stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]})
    };
    let reply = server.client().post("/v1/messages", &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let whole = reply.json();
    request["stream"] = json!(true);
    let streamed = fold(&events(&server.client().post("/v1/messages", &request).await));
    assert_eq!(gist(&streamed), gist(&whole));
    assert_eq!(streamed["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    gist(&whole)
}

#[tokio::test]
async fn answers() {
    let server = TestServer::start().await;
    server.says("plain", &["alpha beta gamma"]);
    server.says("ponder", &["Hm.", "</think>", "\n\nYes."]);
    server.says(
        "act",
        &["Looking.\n\n", "<tool_call>", "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", "</tool_call>"],
    );
    let ask = |text: &str| json!({"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": text}]});
    let text = |text: &str| json!({"type": "text", "text": text});

    assert_eq!(
        both(&server, ask("plain")).await,
        json!({"content": [text("alpha beta gamma")], "stop_reason": "end_turn", "stop_sequence": null})
    );
    let mut stopped = ask("plain");
    stopped["stop_sequences"] = json!(["delta", "gamma"]);
    assert_eq!(
        both(&server, stopped).await,
        json!({"content": [text("alpha beta ")], "stop_reason": "stop_sequence", "stop_sequence": "gamma"})
    );
    let mut short = ask("plain");
    short["max_tokens"] = json!(1);
    assert_eq!(both(&server, short).await["stop_reason"], "max_tokens");

    let mut thinking = ask("ponder");
    thinking["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": ""});
    assert_eq!(
        both(&server, thinking).await,
        json!({"content": [thought, text("Yes.")], "stop_reason": "end_turn", "stop_sequence": null})
    );

    let mut tools = ask("act");
    tools["tools"] = json!([{"name": "weather", "description": "The weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"type": "web_search_20250305", "name": "web_search"}]);
    let call = json!({"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}});
    assert_eq!(both(&server, tools).await, json!({"content": [text("Looking."), call], "stop_reason": "tool_use", "stop_sequence": null}));
    server.stop().await;
}

#[tokio::test]
async fn conversations_count_as_they_render() {
    let server = TestServer::start().await;
    let request = json!({
        "model": "claude", "max_tokens": 10,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=36ee5;"},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Look it up.", "signature": "x"}, {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}]}
        ]
    });
    let rendered = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nweather?<|im_end|>\n\
        <|im_start|>assistant\n<think>\nLook it up.\n</think>\n\nLooking.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let tokens = text().encode(rendered).unwrap().len();
    let counted = server.client().post("/v1/messages/count_tokens", &request).await;
    assert_eq!((counted.status.as_u16(), counted.json()), (200, json!({"input_tokens": tokens})));
    let answered = server.client().post("/v1/messages", &request).await.json();
    assert_eq!(answered["usage"]["input_tokens"], tokens);
    let again = server.client().post("/v1/messages", &request).await.json();
    let sum = again["usage"]["input_tokens"].as_u64().unwrap() + again["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(sum as usize, tokens, "cached tokens are not counted twice: {again}");
    server.stop().await;
}

#[tokio::test]
async fn errors_in_this_api_s_shape() {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["secret".to_owned()];
    let server = TestServer::with(setup).await;
    let refusal = |reply: Reply| {
        assert_eq!(reply.json()["type"], "error");
        let error = reply.json()["error"].clone();
        format!("{} {} {}", reply.status.as_u16(), error["type"].as_str().unwrap(), error["message"].as_str().unwrap())
    };
    let none = server.client().post("/v1/messages", &json!({})).await;
    assert!(refusal(none).starts_with("401 authentication_error expected an API key"));
    let client = server.client().with_header("x-api-key", "secret");
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let cases = [
        (json!({}), "400 invalid_request_error messages: this field is required"),
        (json!({"messages": []}), "400 invalid_request_error messages: expected at least one message, found none"),
        (
            json!({"messages": [{"role": "banana", "content": "x"}]}),
            "400 invalid_request_error messages[0].role: expected user or assistant, found the string \"banana\"",
        ),
        (
            user(json!([{"type": "image", "source": {}}])),
            "400 invalid_request_error messages[0].content[0].type: this server reads text, thinking and tools, found a block of type \"image\"",
        ),
        (user(json!([{"text": "x"}])), "400 invalid_request_error messages[0].content[0].type: this field is required"),
        (user(json!(3)), "400 invalid_request_error messages[0].content: expected a string or an array of blocks, found the number 3"),
    ];
    for (body, expected) in cases {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            assert_eq!(refusal(client.post(path, &body).await), expected, "{path}");
        }
    }
    let broken = client.send(hyper::Method::POST, "/v1/messages", Some("application/json"), "{".into()).await;
    assert_eq!(refusal(broken), "400 invalid_request_error the body is not valid JSON: EOF while parsing an object at line 1 column 1");
    server.stop().await;
}

#[tokio::test]
async fn a_thinking_budget_closes_the_block() {
    let server = TestServer::start().await;
    // The script goes on by position: what the budget inserts replaces what would have been thought there.
    server.says("brood", &["one two three four five six seven eight nine ten"]);
    let pieces = answer(&["one two three four five six seven eight nine ten"]);
    let request = json!({"messages": [{"role": "user", "content": "brood"}], "thinking_budget": 3, "temperature": 0});
    let whole = server.client().chat(&request).await.json();
    let message = &whole["choices"][0]["message"];
    let thought: Vec<u32> = pieces[..3].iter().map(|token| token[0]).collect();
    assert_eq!(message["reasoning_content"], text().decode(&thought).unwrap());
    let closing = answer(&["\n</think>\n\n"]).len();
    let rest: Vec<u32> = pieces[3 + closing..].iter().map(|token| token[0]).collect();
    assert_eq!(message["content"], text().decode(&rest).unwrap());
    server.stop().await;
}
