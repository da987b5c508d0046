//! `GET /`: the chat page, one file without a build step. It talks to the API as any client does.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

const PAGE: &str = include_str!("page.html");

/// The page may run its own script and talk to this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn show() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Html(PAGE)).into_response()
}
