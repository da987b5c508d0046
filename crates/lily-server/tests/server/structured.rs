//! Answers held to a form: JSON, a choice, a pattern, a tool call that must be made.

use serde_json::{Value, json};

use crate::harness::TestServer;

const RAMBLING: &[&str] = &["Well, let me think about what I would like to say here before I say it, and then say it at length."];

fn request(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "ramble"}], "temperature": 0, "max_tokens": 200});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn schema() -> Value {
    json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
    })
}

fn weather() -> Value {
    json!([
        {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "required": ["unit"], "properties": {"unit": {"type": "string", "enum": ["celsius", "kelvin"]}}}}}
    ])
}

/// The message, whole and streamed, which must agree.
async fn both(server: &TestServer, mut request: Value) -> (Value, Value) {
    let whole = server.client().chat(&request).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json()["choices"][0].clone();
    request["stream"] = json!(true);
    let streamed = crate::chat::fold(&server.client().chat(&request).await.events());
    assert_eq!(streamed["message"]["content"], whole["message"]["content"]);
    assert_eq!(streamed["message"]["reasoning_content"], whole["message"]["reasoning_content"]);
    assert_eq!(streamed["finish_reason"], whole["finish_reason"]);
    (whole["message"].clone(), whole["finish_reason"].clone())
}

fn parsed(message: &Value) -> Value {
    let content = message["content"].as_str().unwrap();
    assert!(content.starts_with('{'), "{content:?}");
    serde_json::from_str(content).unwrap_or_else(|error| panic!("{error} in {content:?}"))
}

#[tokio::test]
async fn json_by_schema_whatever_the_model_would_say() {
    let server = TestServer::start().await;
    server.says("ramble", RAMBLING);
    for format in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(), "strict": true}}}),
        json!({"guided_json": schema()}),
        json!({"guided_json": schema().to_string()}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"json_schema": schema()}),
    ] {
        let mut ask = request(format.clone());
        ask["enable_thinking"] = json!(false);
        let (message, finish) = both(&server, ask).await;
        let answer = parsed(&message);
        assert!(answer["city"].as_str().unwrap().chars().count() <= 8, "{format}: {answer}");
        assert!((1..=9).contains(&answer["days"].as_i64().unwrap()), "{format}: {answer}");
        assert_eq!((answer.as_object().unwrap().len(), finish), (2, json!("stop")), "{format}");
    }
    server.stop().await;
}

#[tokio::test]
async fn only_after_thinking() {
    let server = TestServer::start().await;
    server.says("ramble", &["I think freely {", "</think>", "\n\nWell, let me say a lot of things now, one after the other."]);
    let (message, finish) = both(&server, request(json!({"guided_json": schema()}))).await;
    assert_eq!(message["reasoning_content"], "I think freely {");
    assert!(parsed(&message)["days"].is_i64());
    assert_eq!(finish, "stop");
    server.stop().await;
}

#[tokio::test]
async fn other_forms() {
    let server = TestServer::start().await;
    server.says("ramble", RAMBLING);
    let ask = |mut more: Value| {
        more["enable_thinking"] = json!(false);
        request(more)
    };
    let (message, _) = both(&server, ask(json!({"guided_choice": ["north", "south"]}))).await;
    assert!(["north", "south"].contains(&message["content"].as_str().unwrap()), "{message}");
    let (message, _) = both(&server, ask(json!({"guided_regex": "[0-9]{3}-[a-z]{2}"}))).await;
    let content = message["content"].as_str().unwrap();
    assert!(content.len() == 6 && content[..3].bytes().all(|byte| byte.is_ascii_digit()) && &content[3..4] == "-", "{content}");
    let (message, _) = both(&server, ask(json!({"guided_grammar": "start: \"yes\" | \"no\""}))).await;
    assert!(["yes", "no"].contains(&message["content"].as_str().unwrap()), "{message}");
    let raw = server.client().post("/v1/completions", &json!({"prompt": "ramble", "guided_choice": ["up", "down"]})).await.json();
    assert!(["up", "down"].contains(&raw["choices"][0]["text"].as_str().unwrap()), "{raw}");
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_must_be_made() {
    let server = TestServer::start().await;
    server.says("ramble", RAMBLING);
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, name) in [(json!("required"), None), (named, Some("weather"))] {
        let ask = request(json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false, "enable_thinking": false}));
        let (message, finish) = both(&server, ask).await;
        assert_eq!((&message["content"], &finish), (&Value::Null, &json!("tool_calls")), "{message}");
        let calls = message["tool_calls"].as_array().unwrap();
        let function = &calls[0]["function"];
        assert_eq!(calls.len(), 1);
        assert!(name.is_none_or(|name| function["name"] == name), "{function}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        if function["name"] == "weather" {
            assert!(["celsius", "kelvin"].contains(&arguments["unit"].as_str().unwrap()), "{arguments}");
        }
    }
    let anthropic = json!({
        "messages": [{"role": "user", "content": "ramble"}], "temperature": 0, "max_tokens": 200,
        "tools": [{"name": "clock", "input_schema": {"type": "object", "properties": {}}}], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}
    });
    let message = server.client().post("/v1/messages", &anthropic).await.json();
    assert_eq!((&message["stop_reason"], &message["content"][0]["name"]), (&json!("tool_use"), &json!("clock")), "{message}");
    server.stop().await;
}

/// Nobody asks for the call: the model makes it by itself, with a value that its tool does not take.
#[tokio::test]
async fn a_strict_tool_is_called_by_its_schema() {
    let server = TestServer::start().await;
    let call = [
        "Let me see.\n\n",
        "<tool_call>",
        "\n<function=weather>\n<parameter=unit>\nkilograms\n</parameter>\n</function>\n",
        "</tool_call>",
    ];
    server.says("act", &call);
    server.says("ramble", RAMBLING);
    let ask = |key: &str, strict: bool| {
        let mut tools = weather();
        tools[1]["function"]["strict"] = json!(strict);
        let mut ask = request(json!({"tools": tools, "enable_thinking": false, "max_tokens": 120}));
        ask["messages"][0]["content"] = json!(key);
        ask
    };
    let unit = |message: &Value| {
        let function = &message["tool_calls"][0]["function"];
        assert_eq!((&message["content"], &function["name"]), (&json!("Let me see."), &json!("weather")), "{message}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        arguments["unit"].as_str().unwrap().to_owned()
    };
    let (message, _) = both(&server, ask("act", false)).await;
    assert_eq!(unit(&message), "kilograms");
    let (message, _) = both(&server, ask("act", true)).await;
    assert!(["celsius", "kelvin"].contains(&&*unit(&message)), "{message}");
    // Text stays what it is.
    let (free, _) = both(&server, ask("ramble", false)).await;
    let (held, _) = both(&server, ask("ramble", true)).await;
    assert_eq!(held, free);
    server.stop().await;
}

#[tokio::test]
async fn forms_that_do_not_compile() {
    let server = TestServer::start().await;
    let cases = [
        (json!({"guided_json": {"type": "nonsense"}}), "guided_json"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_grammar": "start: ("}), "guided_grammar"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": [1]}), "guided_choice[0]"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}), "response_format.json_schema.schema"),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex"),
    ];
    for (more, param) in cases {
        let reply = server.client().chat(&request(more.clone())).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(param)), "{more}: {}", reply.text);
    }
    server.stop().await;
}

#[tokio::test]
async fn json_or_a_call() {
    let server = TestServer::start().await;
    let call = ["<tool_call>", "\n<function=weather>\n<parameter=unit>\nkelvin\n</parameter>\n</function>\n", "</tool_call>"];
    server.says("act", &call);
    server.says("ramble", RAMBLING);
    let ask = |key: &str| {
        let mut ask = request(json!({"tools": weather(), "guided_json": schema(), "enable_thinking": false}));
        ask["messages"][0]["content"] = json!(key);
        ask
    };
    let (message, finish) = both(&server, ask("act")).await;
    assert_eq!((&message["tool_calls"][0]["function"]["name"], finish), (&json!("weather"), json!("tool_calls")), "{message}");
    // What is neither becomes one of the two; here the first token that is allowed begins JSON.
    let (message, finish) = both(&server, ask("ramble")).await;
    assert!(parsed(&message)["days"].is_i64(), "{message}");
    assert_eq!(finish, "stop");
    server.stop().await;
}
