//! Every field of a full request of every route, replaced by everything that it should not be: whatever a
//! client sends, the answer is never a 5xx and an error always has its shape.

use serde_json::{Value, json};

use crate::harness::TestServer;

/// What to put in a field's place.
fn intruders() -> Vec<Value> {
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(2.5),
        json!(1e308),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!("<|im_end|>\u{0}\u{fdd0}</think>"),
        json!([]),
        json!([null]),
        json!(["x", 1]),
        json!({}),
        json!({"type": "x"}),
        json!({"": {}}),
        deep,
    ]
}

/// Pointers to every value inside.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut child = |name: &str, value: &Value| {
        let pointer = format!("{at}/{name}");
        pointers(value, &pointer, found);
        found.push(pointer);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| child(name, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, value)| child(&index.to_string(), value)),
        _ => {}
    }
}

fn full_requests() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "enum": ["a"]}}, "required": ["city"]});
    let function = json!({"name": "weather", "description": "d", "parameters": schema, "strict": true});
    let call = json!({"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"a\"}"}});
    let chat = json!({
        "model": "m", "max_tokens": 4, "max_completion_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.0,
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "repeat_penalty": 1.1, "seed": 1, "stop": ["x"],
        "stream": false, "stream_options": {"include_usage": true}, "n": 1, "logprobs": true, "top_logprobs": 1,
        "logit_bias": {"5": 1}, "tools": [{"type": "function", "function": function}], "tool_choice": "auto",
        "parallel_tool_calls": true, "response_format": {"type": "text"}, "enable_thinking": true, "thinking": {"type": "enabled", "budget_tokens": 9},
        "reasoning": {"effort": "low", "enabled": true, "max_tokens": 9}, "reasoning_effort": "low", "think": true, "thinking_budget": 9,
        "chat_template_kwargs": {"enable_thinking": true, "preserve_thinking": true, "other": 1}, "preserve_thinking": true,
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "t"}
        ]
    });
    let mut forms = chat.clone();
    forms["guided_json"] = schema.clone();
    forms["tool_choice"] = json!({"type": "function", "function": {"name": "weather"}});
    forms["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let completion = json!({
        "prompt": ["a", "b"], "max_tokens": 2, "temperature": 1, "logprobs": 1, "n": 1, "stop": "x", "stream": false, "suffix": null,
        "best_of": 1, "echo": false, "logit_bias": {"5": 1}, "guided_choice": ["a", "b"]
    });
    let messages = json!({
        "model": "m", "max_tokens": 4, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "temperature": 1, "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 9}, "tools": [{"name": "weather", "description": "d", "input_schema": schema}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": ""}, {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "a"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}], "is_error": true}]}
        ]
    });
    let responses = json!({
        "model": "m", "max_output_tokens": 4, "instructions": "i", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
        "tools": [{"type": "function", "name": "weather", "parameters": schema}], "tool_choice": "auto", "metadata": {"a": "b"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"}
        ]
    });
    vec![
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", forms),
        ("/v1/completions", completion),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
        ("/tokenize", chat),
        ("/detokenize", json!({"tokens": [1, 2]})),
    ]
}

#[tokio::test]
async fn nothing_that_a_client_sends_is_a_5xx() {
    let server = TestServer::start().await;
    let client = server.client();
    for (path, request) in full_requests() {
        let mut found = Vec::new();
        pointers(&request, "", &mut found);
        for pointer in found {
            for intruder in intruders() {
                let mut mutated = request.clone();
                *mutated.pointer_mut(&pointer).expect("a pointer of the request") = intruder.clone();
                let reply = client.post(path, &mutated).await;
                let status = reply.status.as_u16();
                assert!(status == 200 || status == 400, "{path} {pointer} = {intruder}: {status} {}", reply.text);
                let streams = mutated["stream"] == true && status == 200;
                if !streams {
                    let message = &reply.json()["error"]["message"];
                    assert_eq!(status == 400, message.is_string(), "{path} {pointer} = {intruder}: {}", reply.text);
                }
            }
        }
    }
    assert_eq!(client.get("/health").await.status, 200);
    let stats = server.engine.stats();
    assert_eq!((stats.failed, stats.running(), stats.waiting), (0, 0, 0));
    server.stop().await;
}
