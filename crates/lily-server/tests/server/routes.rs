//! The small routes, and what is no route.

use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use crate::harness::TestServer;

#[tokio::test]
async fn models() {
    let server = TestServer::start().await;
    for path in ["/v1/models", "/models"] {
        let list = server.client().get(path).await.json();
        assert_eq!(list["object"], "list");
        assert_eq!(list["data"].as_array().unwrap().len(), 1);
        assert_eq!(list["data"][0]["id"], "lily-test");
        assert_eq!(list["data"][0]["object"], "model");
        assert_eq!(list["data"][0]["context_length"], 2048);
        assert!(list["data"][0]["created"].as_u64().unwrap() > 1_700_000_000);
    }
    assert_eq!(server.client().get("/v1/models/lily-test").await.json()["id"], "lily-test");
    let unknown = server.client().get("/v1/models/org/other").await;
    assert_eq!(unknown.error(), "404 there is no model \"org/other\"; this server has \"lily-test\"");
    assert_eq!(unknown.json()["error"]["code"], "model_not_found");
    server.stop().await;
}

#[tokio::test]
async fn health() {
    let server = TestServer::start().await;
    let health = server.client().get("/health").await.json();
    assert_eq!((&health["status"], &health["device"], &health["context"]), (&json!("ok"), &json!("scripted"), &json!(2048)));
    assert_eq!((&health["running"], &health["waiting"]), (&json!(0), &json!(0)));
    server.stop().await;
}

#[tokio::test]
async fn tokenizer() {
    let server = TestServer::start().await;
    let client = server.client();
    for text in ["Hello, world.", "hi😀", "", "<|im_start|>user\nПривет<|im_end|>"] {
        let there = client.post("/tokenize", &json!({"content": text, "with_pieces": true})).await.json();
        assert_eq!(there["count"].as_u64().unwrap() as usize, there["tokens"].as_array().unwrap().len());
        let back = client.post("/v1/detokenize", &json!({"tokens": there["tokens"]})).await.json();
        assert_eq!(back["content"], text);
    }
    assert_eq!(client.post("/tokenize", &json!({})).await.error(), "400 content: this field, or `prompt` or `messages`, is required");
    assert_eq!(client.post("/detokenize", &json!({})).await.error(), "400 tokens: this field is required");
    let wrong = client.post("/detokenize", &json!({"tokens": [1, "a"]})).await;
    assert_eq!(wrong.error(), "400 tokens[1]: expected a token id, found the string \"a\"");
    let unknown = client.post("/detokenize", &json!({"tokens": [99999]})).await;
    assert_eq!(unknown.error(), "400 token 99999 does not exist: the vocabulary ends at 6144");
    server.stop().await;
}

#[tokio::test]
async fn no_such_route() {
    let server = TestServer::start().await;
    let client = server.client();
    let reply = client.get("/v1/banana").await;
    assert_eq!(reply.error(), "404 there is no route GET /v1/banana; the API begins at /v1");
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
    let reply = client.get("/v1/chat/completions").await;
    assert_eq!(reply.error(), "405 the route /v1/chat/completions does not take the method GET; see the header Allow");
    assert_eq!(reply.headers["allow"], "POST");
    let reply = client.send(Method::DELETE, "/v1/models", None, Bytes::new()).await;
    assert_eq!(reply.status, 405);
    assert_eq!(reply.headers["allow"], "GET,HEAD");
    server.stop().await;
}

#[tokio::test]
async fn metrics() {
    let server = TestServer::start().await;
    server.says("count", &["one two"]);
    let request = json!({"messages": [{"role": "user", "content": "count"}], "enable_thinking": false});
    for _ in 0..2 {
        assert_eq!(server.client().chat(&request).await.status, 200);
    }
    let metrics = server.client().get("/metrics").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    for line in [
        "lily_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 2",
        "lily_answers_total{reason=\"stop\"} 2",
        "lily_time_to_first_token_seconds_count 2",
        "lily_inter_token_seconds_count 4",
        "lily_requests_submitted_total 2",
        "lily_generated_tokens_total 6",
        "lily_cache_lookups_total{result=\"miss_empty\"} 2",
        "lily_requests_waiting 0",
    ] {
        assert!(metrics.text.lines().any(|found| found == line), "{line} in\n{}", metrics.text);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_chat_page() {
    let server = TestServer::start().await;
    let page = server.client().get("/").await;
    assert_eq!((page.status.as_u16(), &page.headers["content-type"]), (200, &"text/html; charset=utf-8".parse().unwrap()));
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    assert!(page.text.contains("<title>Lily</title>"));
    server.stop().await;
}
