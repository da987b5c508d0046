//! HTTP as the tests need it: one connection per request, nothing hidden.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    host: String,
    headers: Vec<(&'static str, String)>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    /// `error.message`, and the status in front.
    pub fn error(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.json()["error"]["message"].as_str().expect("an error message"))
    }

    /// The data of a stream's events, up to and without `[DONE]`, which must be the last.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8", "{}", self.text);
        let mut data: Vec<&str> =
            self.text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("a data event")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.text);
        data.iter().map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data:?}"))).collect()
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Client { address, host: address.to_string(), headers: Vec::new() }
    }

    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// What the client believes the server to be called.
    pub fn with_host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None, Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, Some("application/json"), body.to_string().into()).await
    }

    pub async fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body).await
    }

    pub async fn send(&self, method: Method, path: &str, content_type: Option<&str>, body: Bytes) -> Reply {
        let response = self.open(method, path, content_type, body).await;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await.expect("the whole body").to_bytes();
        Reply { status, headers, text: String::from_utf8(bytes.into()).expect("UTF-8") }
    }

    /// The response as soon as its headers are there; dropping it closes the connection.
    pub async fn open(&self, method: Method, path: &str, content_type: Option<&str>, body: Bytes) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(path).header("host", &self.host);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let stream = self.connect().await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        tokio::spawn(connection);
        sender.send_request(request.body(Full::new(body)).expect("a request")).await.expect("an answer")
    }

    /// A stream, event by event.
    pub async fn stream(&self, path: &str, body: &Value) -> Events {
        let response = self.open(Method::POST, path, Some("application/json"), body.to_string().into()).await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body(), received: Vec::new() }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }
}

/// The events of a stream that is still running; dropping it closes the connection.
pub struct Events {
    body: Incoming,
    received: Vec<u8>,
}

impl Events {
    /// The next event's data; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|bytes| bytes == b"\n\n") {
                let event: Vec<u8> = self.received.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("an event is UTF-8");
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
                return Some(data.to_owned());
            }
            let frame = self.body.frame().await?.expect("a frame");
            self.received.extend_from_slice(frame.data_ref().expect("no trailers"));
        }
    }

    /// Reads on until an event fits; false when the stream ends first.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> bool {
        while let Some(data) = self.next().await {
            if serde_json::from_str(&data).is_ok_and(|event| fits(&event)) {
                return true;
            }
        }
        false
    }
}
