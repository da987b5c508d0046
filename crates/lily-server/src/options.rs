//! How the server is set up, and taking its port.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpListener;

/// Where to listen and what to allow.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// An address or a name; `127.0.0.1` serves this machine only.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// Any of these opens the API; empty: no key is asked for.
    pub api_keys: Vec<String>,
    /// Origins whose pages may call this server from a browser; `*` is all. Empty: none.
    pub cors_origins: Vec<String>,
    pub body_limit_bytes: usize,
    /// From a request's first byte to the end of its headers.
    pub header_timeout: Duration,
    /// From the end of the headers to the end of the body.
    pub body_timeout: Duration,
    /// From the whole request to the end of the answer; `None` lets an answer take as long as it takes.
    pub request_timeout: Option<Duration>,
    /// Longest silence in a stream, prefill included; clients give up after some seconds without bytes.
    pub keep_alive: Duration,
    /// How long a shutdown lets running answers finish before it cuts them off.
    pub drain_timeout: Duration,
    /// Connections served at a time; more wait in the system's backlog.
    pub connections_max: usize,
    /// Each answer's prompt, tokens and timings are written here, for bug reports. `None`: nothing is.
    pub trace_dir: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            body_limit_bytes: 32 << 20,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            request_timeout: None,
            keep_alive: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            connections_max: 1024,
            trace_dir: None,
        }
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("port {port} on {host} is in use by another program: stop it, or choose another port with --port")]
    PortInUse { host: String, port: u16 },
    #[error("port {port} on {host} needs rights that this user does not have: choose one from 1024 on with --port")]
    PortForbidden { host: String, port: u16 },
    #[error("cannot listen on {host}:{port}: {source}")]
    Bind { host: String, port: u16, source: io::Error },
    #[error("CORS origin {origin:?}: expected `*` or scheme://host[:port] without a path, such as http://localhost:3000")]
    CorsOrigin { origin: String },
    #[error("the system starts no further thread: {0}")]
    Thread(io::Error),
    #[error("cannot make the directory for traces {directory}: {source}", directory = directory.display())]
    TraceDir { directory: PathBuf, source: io::Error },
    #[error("the API key at place {place} {what}")]
    ApiKey { place: usize, what: &'static str },
}

/// Takes the port.
pub async fn bind(options: &ServerOptions) -> Result<TcpListener, ServerError> {
    let (host, port) = (options.host.clone(), options.port);
    TcpListener::bind((host.as_str(), port)).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::PortInUse { host, port },
        io::ErrorKind::PermissionDenied => ServerError::PortForbidden { host, port },
        _ => ServerError::Bind { host, port, source },
    })
}
