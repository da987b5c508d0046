//! Keeps pages of other sites out that have renamed this machine.
//!
//! A server on the loopback address without a key trusts whoever reaches it. A page on `evil.example` reaches
//! it once it points that name at 127.0.0.1: for the browser the server then belongs to the page. The name is
//! still in the `Host` header, so names that the outside could have given are refused.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::service::App;

/// Middleware around every route.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    if !trusts_everyone(&app.options) {
        return next.run(request).await;
    }
    let from_header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let Some(authority) = from_header.or(request.uri().authority().map(|authority| authority.as_str())) else {
        return next.run(request).await; // no browser
    };
    let name = without_port(authority);
    if is_local(name) || name.eq_ignore_ascii_case(&app.options.host) {
        return next.run(request).await;
    }
    let message = format!("this server answers to local names only, found the host {name:?}; with an API key it answers to any");
    ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message).into_response()
}

fn trusts_everyone(options: &ServerOptions) -> bool {
    let loopback = options.host.eq_ignore_ascii_case("localhost") || parse_ip(&options.host).is_some_and(|address| address.is_loopback());
    loopback && options.api_keys.is_empty()
}

fn without_port(authority: &str) -> &str {
    let Some((name, port)) = authority.rsplit_once(':') else { return authority };
    // The last colon of a bare IPv6 address begins no port.
    let whole_name = !name.contains(':') || name.ends_with(']');
    if whole_name && port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { authority }
}

fn parse_ip(name: &str) -> Option<IpAddr> {
    name.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Addresses, and names that public DNS never gives out.
fn is_local(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let reserved = [".localhost", ".local", ".internal"];
    name == "localhost" || parse_ip(&name).is_some() || reserved.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_names() {
        let local = [
            "localhost:8080",
            "LOCALHOST",
            "127.0.0.1:8080",
            "[::1]:8080",
            "::1",
            "192.168.1.5",
            "host.docker.internal:80",
            "mac.local",
            "a.localhost.",
        ];
        for authority in local {
            assert!(is_local(without_port(authority)), "{authority}");
        }
        for authority in ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "local", ""] {
            assert!(!is_local(without_port(authority)), "{authority}");
        }
    }
}
