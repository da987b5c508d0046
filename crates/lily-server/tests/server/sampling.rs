//! Sampling, several answers, log-probabilities, usage and the state cache, as clients see them.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::device::{Gate, Script};
use crate::harness::{TestServer, answer, text};

fn content(reply: &Value, choice: usize) -> &str {
    reply["choices"][choice]["message"]["content"].as_str().unwrap()
}

fn request(key: &str, more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": key}], "enable_thinking": false});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// A script of ten places with eight equally likely letters each.
fn letters(key: &str) -> Script {
    let letters: Vec<u32> = "abcdefgh".chars().map(|letter| text().encode(&letter.to_string()).unwrap()[0]).collect();
    Script { key: key.to_owned(), answer: vec![letters; 10], ..Script::default() }
}

#[tokio::test]
async fn seeds_repeat_and_greedy_repeats() {
    let server = TestServer::start().await;
    server.script(letters("draw"));
    let client = server.client();
    let ask = |more: Value| {
        let client = client.clone();
        async move { content(&client.chat(&request("draw", more)).await.json(), 0).to_owned() }
    };
    let first = ask(json!({"seed": 1, "temperature": 1})).await;
    assert_eq!(first.len(), 10);
    assert_eq!(ask(json!({"seed": 1, "temperature": 1})).await, first);
    assert_ne!(ask(json!({"seed": 2, "temperature": 1})).await, first);
    assert_eq!(ask(json!({"temperature": 0})).await, "aaaaaaaaaa");
    assert_eq!(ask(json!({"temperature": 1, "top_k": 1})).await, "aaaaaaaaaa");
    let bias = text().encode("c").unwrap()[0].to_string();
    assert_eq!(ask(json!({"temperature": 0, "logit_bias": {bias: 5}})).await, "cccccccccc");
    assert_eq!(ask(json!({"temperature": 0, "presence_penalty": 1})).await, "abcdefghaa");
    server.stop().await;
}

#[tokio::test]
async fn several_answers() {
    let server = TestServer::start().await;
    server.script(letters("draw"));
    let whole = server.client().chat(&request("draw", json!({"n": 3, "seed": 1, "temperature": 1}))).await.json();
    let answers: Vec<&str> = (0..3).map(|choice| content(&whole, choice)).collect();
    assert!(answers[0] != answers[1] && answers[1] != answers[2], "{answers:?}");
    assert_eq!(whole["usage"]["completion_tokens"], 33, "ten letters and the end, three times");
    let prompt = text().encode("<|im_start|>user\ndraw<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n").unwrap().len();
    assert_eq!(whole["usage"]["prompt_tokens"], prompt, "the prompt counts once");

    let streamed = server.client().chat(&request("draw", json!({"n": 3, "seed": 1, "temperature": 1, "stream": true}))).await;
    let mut folded = vec![String::new(); 3];
    for event in streamed.events() {
        let choice = &event["choices"][0];
        folded[choice["index"].as_u64().unwrap() as usize].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(folded, answers);
    server.stop().await;
}

#[tokio::test]
async fn logprobs_belong_to_the_content() {
    let server = TestServer::start().await;
    server.says("count", &["Hm.", "</think>", "\n\n", "one two", " 😀"]);
    let ask = json!({"messages": [{"role": "user", "content": "count"}], "temperature": 0, "logprobs": true, "top_logprobs": 2});
    let whole = server.client().chat(&ask).await.json();
    assert_eq!(content(&whole, 0), "one two 😀");
    let entries = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = entries.iter().flat_map(|entry| serde_json::from_value::<Vec<u8>>(entry["bytes"].clone()).unwrap()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "one two 😀");
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        assert!(top[0]["logprob"].as_f64().unwrap().abs() < 1e-6);
        assert!((top[1]["logprob"].as_f64().unwrap() + 30.0).abs() < 1e-3, "the scripted runner-up");
    }
    let mut ask = ask;
    ask["stream"] = json!(true);
    let events = server.client().chat(&ask).await.events();
    let streamed: Vec<Value> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten().cloned().collect();
    assert_eq!(&streamed, entries);
    server.stop().await;
}

#[tokio::test]
async fn usage_and_timings() {
    let server = TestServer::start().await;
    let pieces = ["two words", "</think>", "\n\nfour"];
    server.says("count", &pieces);
    let ask = json!({"messages": [{"role": "user", "content": "count"}], "temperature": 0});
    let whole = server.client().chat(&ask).await.json();
    let prompt = text().encode("<|im_start|>user\ncount<|im_end|>\n<|im_start|>assistant\n<think>\n").unwrap().len();
    let tokens = |pieces: &[&str]| answer(pieces).len();
    assert_eq!(
        whole["usage"],
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": tokens(&pieces) + 1,
            "total_tokens": prompt + tokens(&pieces) + 1,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": tokens(&pieces[..2])},
        })
    );
    assert_eq!((&whole["timings"]["prompt_n"], &whole["timings"]["predicted_n"]), (&json!(prompt), &json!(tokens(&pieces) + 1)));
    // An answer that a stop text cut short is counted too.
    let mut stopped = ask.clone();
    stopped["stop"] = json!("four");
    let stopped = server.client().chat(&stopped).await.json();
    assert!(stopped["usage"]["completion_tokens"].as_u64().unwrap() as usize >= tokens(&pieces), "{stopped}");
    server.stop().await;
}

#[tokio::test]
async fn the_same_request_twice_is_found_in_the_cache() {
    let server = TestServer::start().await;
    let key = format!("long {}", "word ".repeat(600));
    server.says(key.trim_end(), &["the answer"]);
    for stream in [false, true] {
        let ask = json!({
            "messages": [{"role": "system", "content": format!("You are {stream}.")}, {"role": "user", "content": key}],
            "temperature": 0, "enable_thinking": false, "stream": stream, "stream_options": {"include_usage": true}
        });
        let mut cached = Vec::new();
        for _ in 0..2 {
            let reply = server.client().chat(&ask).await;
            let usage = if stream { reply.events().last().unwrap()["usage"].clone() } else { reply.json()["usage"].clone() };
            cached.push(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
        }
        assert_eq!(cached[0], 0, "stream {stream}");
        assert!(cached[1] > 500, "stream {stream}: {cached:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn simultaneous_answers_do_not_mix() {
    let server = TestServer::start().await;
    let words = ["north", "east", "south", "west", "up", "down"];
    for word in words {
        server.says(&format!("go {word}"), &[&format!("{word} ").repeat(30)]);
    }
    // Held until all are submitted, so that they really run side by side.
    let gate = Arc::new(Gate::default());
    server.script(Script { key: "hold".to_owned(), waits_at: Some((0, gate.clone())), ..Script::default() });
    let holding = tokio::spawn({
        let client = server.client();
        async move { client.chat(&request("hold", json!({}))).await.status }
    });
    let asked = words.map(|word| {
        let client = server.client();
        let stream = word.len() % 2 == 0;
        tokio::spawn(async move {
            let reply = client.chat(&request(&format!("go {word}"), json!({"temperature": 0, "stream": stream}))).await;
            if !stream {
                return content(&reply.json(), 0).to_owned();
            }
            reply.events().iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
        })
    });
    gate.open();
    for (word, asked) in words.into_iter().zip(asked) {
        assert_eq!(asked.await.unwrap(), format!("{word} ").repeat(30));
    }
    assert_eq!(holding.await.unwrap(), 200);
    server.stop().await;
}
