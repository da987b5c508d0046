//! Who may come in: API keys and CORS.

use hyper::Method;
use hyper::body::Bytes;
use lily_server::{ServerError, ServerOptions};
use serde_json::json;

use crate::harness::{Setup, TestServer};

fn with_keys(keys: &[&str]) -> Setup {
    let mut setup = Setup::default();
    setup.server.api_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    setup
}

#[tokio::test]
async fn keys() {
    let server = TestServer::with(with_keys(&["secret-1", "secret-2"])).await;
    server.says("hello", &["fine"]);
    let open = ["/health"];
    for path in open {
        assert_eq!(server.client().get(path).await.status, 200, "{path}");
    }
    let none = server.client().get("/v1/models").await;
    assert_eq!(none.error(), "401 expected an API key in the header Authorization: Bearer KEY (or x-api-key: KEY), found none");
    assert_eq!(none.json()["error"]["code"], "invalid_api_key");
    assert_eq!(none.headers["www-authenticate"], "Bearer");
    for (name, value, status) in [
        ("authorization", "Bearer secret-1", 200),
        ("authorization", "bearer secret-2", 200),
        ("x-api-key", "secret-2", 200),
        ("authorization", "Bearer secret-3", 401),
        ("authorization", "Bearer secret-", 401),
        ("authorization", "Basic secret-1", 401),
        ("x-api-key", "", 401),
    ] {
        let client = server.client().with_header(name, value);
        let request = json!({"messages": [{"role": "user", "content": "hello"}]});
        assert_eq!(client.chat(&request).await.status, status, "{name}: {value}");
        assert_eq!(client.get("/v1/models").await.status, status, "{name}: {value}");
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites() {
    let ask = |server: &TestServer, origin: &'static str| {
        let client = server.client().with_header("origin", origin).with_header("access-control-request-method", "POST");
        async move { client.send(Method::OPTIONS, "/v1/chat/completions", None, Bytes::new()).await }
    };
    let closed = TestServer::start().await;
    let reply = ask(&closed, "http://localhost:3000").await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
    closed.stop().await;

    let mut setup = with_keys(&["secret"]);
    setup.server.cors_origins = vec!["http://localhost:3000".to_owned()];
    let server = TestServer::with(setup).await;
    let reply = ask(&server, "http://localhost:3000").await;
    assert_eq!((reply.status.as_u16(), &reply.headers["access-control-allow-origin"]), (200, &"http://localhost:3000".parse().unwrap()));
    let reply = ask(&server, "http://evil.example").await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
    // An answer that the page may read, errors included.
    let reply = server.client().with_header("origin", "http://localhost:3000").get("/v1/models").await;
    assert_eq!((reply.status.as_u16(), &reply.headers["access-control-allow-origin"]), (401, &"http://localhost:3000".parse().unwrap()));
    server.stop().await;
}

#[tokio::test]
async fn a_page_that_renamed_this_machine() {
    let open = TestServer::start().await;
    let renamed = |server: &TestServer| server.client().with_host("evil.example:8080");
    let refused = renamed(&open).get("/v1/models").await;
    let expected = "403 this server answers to local names only, found the host \"evil.example\"; with an API key it answers to any";
    assert_eq!(refused.error(), expected);
    assert_eq!(renamed(&open).get("/").await.status, 403);
    assert_eq!(open.client().with_host("localhost").get("/v1/models").await.status, 200);
    open.stop().await;

    let keyed = TestServer::with(with_keys(&["secret"])).await;
    assert_eq!(renamed(&keyed).with_header("x-api-key", "secret").get("/v1/models").await.status, 200);
    keyed.stop().await;
}

#[tokio::test]
async fn options_that_would_not_work() {
    let refusal = |options: ServerOptions| async move { TestServer::refused(options).await.to_string() };
    let keys = |key: &str| ServerOptions { port: 0, api_keys: vec!["good".to_owned(), key.to_owned()], ..ServerOptions::default() };
    assert_eq!(refusal(keys("")).await, "the API key at place 2 is empty");
    assert_eq!(
        refusal(keys("with space")).await,
        "the API key at place 2 has characters that a header cannot carry: use visible ASCII without spaces"
    );
    for origin in ["localhost:3000", "http://", "http://localhost/path"] {
        let options = ServerOptions { port: 0, cors_origins: vec![origin.to_owned()], ..ServerOptions::default() };
        let error = TestServer::refused(options).await;
        assert!(matches!(&error, ServerError::CorsOrigin { origin: named } if named == origin), "{error}");
    }
}
