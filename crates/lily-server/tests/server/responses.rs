//! The Responses API, stateless.

use serde_json::{Value, json};

use crate::client::Reply;
use crate::harness::{TestServer, text};

/// The events of a stream: named, typed and numbered.
fn events(reply: &Reply) -> Vec<Value> {
    let read = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(data["type"], name.strip_prefix("event: ").expect("a name"));
        assert_eq!(data["sequence_number"], number);
        data
    };
    reply.text.split_terminator("\n\n").enumerate().map(read).collect()
}

fn without_ids(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        for name in ["id", "call_id"] {
            if let Some(id) = item.as_object_mut().unwrap().remove(name) {
                assert!(id.as_str().is_some_and(|id| !id.is_empty()));
            }
        }
    }
    output
}

/// Sends it both ways; the output and status must agree, and the deltas must add up to the output.
async fn both(server: &TestServer, mut request: Value) -> (Value, Value) {
    request["temperature"] = json!(0);
    let reply = server.client().post("/v1/responses", &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let whole = reply.json();
    request["stream"] = json!(true);
    let events = events(&server.client().post("/v1/responses", &request).await);
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    let last = &events.last().unwrap()["response"];
    assert_eq!(events.last().unwrap()["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(without_ids(last), without_ids(&whole));
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of_item = |event: &&Value| event["output_index"] == index;
        let deltas: String = events.iter().filter(of_item).filter_map(|event| event["delta"].as_str()).collect();
        let text = item["arguments"].as_str().or(item["content"][0]["text"].as_str()).unwrap();
        assert_eq!(deltas, text);
        let done = events.iter().filter(of_item).find(|event| event["type"] == "response.output_item.done").expect("an end");
        assert_eq!(&done["item"], item);
    }
    (whole["status"].clone(), without_ids(&whole))
}

fn message(text: &str, status: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    json!({"type": "message", "status": status, "role": "assistant", "content": [part]})
}

#[tokio::test]
async fn answers() {
    let server = TestServer::start().await;
    server.says("plain", &["Hm.", "</think>", "\n\nalpha beta gamma"]);
    server.says("act", &["<tool_call>", "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n", "</tool_call>"]);
    let thought =
        json!({"type": "reasoning", "status": "completed", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]});
    let (status, output) = both(&server, json!({"input": "plain", "model": "gpt"})).await;
    assert_eq!((status, output), (json!("completed"), json!([thought, message("alpha beta gamma", "completed")])));

    let (status, output) = both(&server, json!({"input": "plain", "max_output_tokens": 1, "reasoning": {"effort": "none"}})).await;
    assert_eq!(status, "incomplete");
    assert_eq!(output[0]["status"], "incomplete");

    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"type": "web_search"}]);
    let (status, output) = both(&server, json!({"input": "act", "tools": tools, "reasoning": {"effort": "none"}})).await;
    let call = json!({"type": "function_call", "status": "completed", "name": "weather", "arguments": "{\"city\":\"Oslo\"}"});
    let mut found = output[0].clone();
    let arguments: Value = serde_json::from_str(found["arguments"].as_str().unwrap()).unwrap();
    found["arguments"] = json!(arguments.to_string());
    assert_eq!((status, found), (json!("completed"), call));
    server.stop().await;
}

#[tokio::test]
async fn items_render_as_one_conversation() {
    let server = TestServer::start().await;
    let request = json!({
        "instructions": "Be kind.", "reasoning": {"effort": "none"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Oslo\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        ]
    });
    let rendered = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nweather?<|im_end|>\n\
        <|im_start|>assistant\n<think>\nLook it up.\n</think>\n\nLooking.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let answered = server.client().post("/v1/responses", &request).await;
    assert_eq!(answered.status, 200, "{}", answered.text);
    assert_eq!(answered.json()["usage"]["input_tokens"], text().encode(rendered).unwrap().len());
    server.stop().await;
}

#[tokio::test]
async fn refused() {
    let server = TestServer::start().await;
    let cases = [
        (json!({}), "400 input: this field is required"),
        (json!({"input": []}), "400 input: expected at least one item, found none"),
        (json!({"input": 4}), "400 input: expected a string or an array of items, found the number 4"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "400 input[0].type: this server reads messages, reasoning, function calls and their outputs, found an item of type \"item_reference\"",
        ),
        (
            json!({"input": "a", "previous_response_id": "resp_1"}),
            "400 previous_response_id: this server stores no responses: send the whole conversation as input",
        ),
        (json!({"input": "a", "background": true}), "400 background: this server stores no responses: stream the answer or wait for it"),
        (
            json!({"input": "a", "reasoning": {"effort": "immense"}}),
            "400 reasoning.effort: expected none, minimal, low, medium, high, xhigh or max, found the string \"immense\"",
        ),
    ];
    for (request, expected) in cases {
        assert_eq!(server.client().post("/v1/responses", &request).await.error(), expected, "{request}");
    }
    server.stop().await;
}
