//! `/v1/completions`: text that goes on.

use serde_json::{Value, json};

use crate::harness::{TestServer, text};

/// Sends it whole and streamed; returns text and finish reason of each choice, which must agree.
async fn both(server: &TestServer, mut request: Value) -> Vec<(String, String)> {
    request["temperature"] = json!(0);
    let whole = server.client().post("/v1/completions", &request).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json();
    assert_eq!(whole["object"], "text_completion");
    let choice = |choice: &Value| (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned());
    let choices: Vec<_> = whole["choices"].as_array().unwrap().iter().map(choice).collect();

    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let mut folded = vec![(String::new(), String::new()); choices.len()];
    let mut usage = Value::Null;
    for event in server.client().post("/v1/completions", &request).await.events() {
        let Some(choice) = event["choices"].get(0) else {
            usage = event["usage"].clone();
            continue;
        };
        let (text, finish) = &mut folded[choice["index"].as_u64().unwrap() as usize];
        assert!(finish.is_empty(), "nothing follows the finish reason");
        text.push_str(choice["text"].as_str().unwrap());
        finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    assert_eq!(folded, choices);
    assert_eq!(usage["total_tokens"], whole["usage"]["total_tokens"]);
    choices
}

fn expected(choices: &[(&str, &str)]) -> Vec<(String, String)> {
    choices.iter().map(|(text, finish)| ((*text).to_owned(), (*finish).to_owned())).collect()
}

#[tokio::test]
async fn every_form_of_prompt() {
    let server = TestServer::start().await;
    server.says("Once upon", &[" a time 😀."]);
    server.says("Two and two", &[" make four"]);
    let tokens = text().encode("Once upon").unwrap();
    let more = text().encode("Two and two").unwrap();
    let one = expected(&[(" a time 😀.", "stop")]);
    assert_eq!(both(&server, json!({"prompt": "Once upon"})).await, one);
    assert_eq!(both(&server, json!({"prompt": ["Once upon"]})).await, one);
    assert_eq!(both(&server, json!({"prompt": tokens})).await, one);
    let two = expected(&[(" a time 😀.", "stop"), (" make four", "stop")]);
    assert_eq!(both(&server, json!({"prompt": ["Once upon", "Two and two"]})).await, two);
    assert_eq!(both(&server, json!({"prompt": [tokens, more]})).await, two);
    let echoed = expected(&[("Once upon a time 😀.", "stop")]);
    assert_eq!(both(&server, json!({"prompt": "Once upon", "echo": true})).await, echoed);
    let twice = expected(&[(" a time 😀.", "stop"), (" a time 😀.", "stop")]);
    assert_eq!(both(&server, json!({"prompt": "Once upon", "n": 2})).await, twice);
    server.stop().await;
}

#[tokio::test]
async fn ends() {
    let server = TestServer::start().await;
    server.says("alpha", &[" beta gamma", "<think>", " delta", "<tool_call>"]);
    let raw = expected(&[(" beta gamma<think> delta<tool_call>", "stop")]);
    assert_eq!(both(&server, json!({"prompt": "alpha"})).await, raw, "nothing is markup here");
    assert_eq!(both(&server, json!({"prompt": "alpha", "stop": ["gamma"]})).await, expected(&[(" beta ", "stop")]));
    assert_eq!(both(&server, json!({"prompt": "alpha", "stop": "a<th"})).await, expected(&[(" beta gamm", "stop")]));
    let limited = both(&server, json!({"prompt": "alpha", "max_tokens": 1})).await;
    assert_eq!(limited[0].1, "length");
    assert!(" beta gamma".starts_with(&limited[0].0) && !limited[0].0.is_empty(), "{limited:?}");
    server.stop().await;
}

#[tokio::test]
async fn refused() {
    let server = TestServer::start().await;
    let cases = [
        (json!({}), "400 prompt: this field is required"),
        (json!({"prompt": 5}), "400 prompt: expected a string, an array of strings, or arrays of token ids, found the number 5"),
        (json!({"prompt": ""}), "400 the prompt has no tokens"),
        (json!({"prompt": []}), "400 prompt: expected 1 to 64 prompts, found 0"),
        (json!({"prompt": [[]]}), "400 the prompt has no tokens"),
        (json!({"prompt": [1, "a"]}), "400 prompt[1]: expected a token id, found the string \"a\""),
        (json!({"prompt": [1, -2]}), "400 prompt[1]: expected a token id, found the number -2"),
        (json!({"prompt": [99999]}), "400 token 99999 in the prompt; the vocabulary has 6144"),
        (json!({"prompt": "a", "suffix": "b"}), "400 suffix: this server continues text, it does not fill gaps"),
        (json!({"prompt": "a", "best_of": 4}), "400 best_of: this server returns every answer that it generates: use n"),
        (
            json!({"prompt": "a", "echo": true, "logprobs": 1}),
            "400 echo: log-probabilities of the prompt are not supported: send echo or logprobs",
        ),
        (json!({"prompt": "a", "max_tokens": "b"}), "400 max_tokens: expected an integer, found the string \"b\""),
    ];
    for (request, expected) in cases {
        assert_eq!(server.client().post("/v1/completions", &request).await.error(), expected, "{request}");
    }
    server.stop().await;
}

#[tokio::test]
async fn logprobs() {
    let server = TestServer::start().await;
    server.says("Once upon", &[" a time"]);
    let request = json!({"prompt": "Once upon", "logprobs": 2, "temperature": 0});
    let answer = server.client().post("/v1/completions", &request).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), " a time");
    let mut offset = 0;
    for (at, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][at], offset);
        offset += token.chars().count();
        assert!(logprobs["token_logprobs"][at].as_f64().unwrap().abs() < 1e-6);
        assert_eq!(logprobs["top_logprobs"][at].as_object().unwrap().len(), 2);
        assert!(logprobs["top_logprobs"][at][*token].as_f64().unwrap().abs() < 1e-6);
    }
    server.stop().await;
}
