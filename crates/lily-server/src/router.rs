//! The routes: the server's table of contents.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::ApiError;
use crate::options::{ServerError, ServerOptions};
use crate::service::App;
use crate::{access, anthropic, auth, chat, completions, health, host, metrics, models, openapi, page, responses, tokenize};

pub(crate) fn router(app: App) -> Result<Router, ServerError> {
    check_keys(&app.options.api_keys)?;
    let cors = cors(&app.options)?;
    let mut api = Router::new();
    for (path, methods) in api_routes() {
        // With and without `/v1`: clients differ in what they call the base URL.
        api = api.route(path, methods.clone()).route(&format!("/v1{path}"), methods);
    }
    let api = api.route("/metrics", get(metrics::show));
    let router = api
        .route_layer(from_fn_with_state(app.clone(), auth::check))
        .route("/health", get(health::show))
        .route("/openapi.json", get(openapi::show))
        .route("/", get(page::show))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_route)
        .layer(cors)
        .layer(from_fn_with_state(app.clone(), host::check))
        .layer(from_fn_with_state(app.clone(), access::log))
        .with_state(app);
    Ok(router)
}

/// The API's routes below `/v1`. What each takes and answers stands in `openapi.json`, which a test holds
/// against this table.
pub(crate) fn api_routes() -> [(&'static str, MethodRouter<App>); 9] {
    [
        ("/chat/completions", post(chat::create)),
        ("/completions", post(completions::create)),
        ("/responses", post(responses::create)),
        ("/messages", post(anthropic::create)),
        ("/messages/count_tokens", post(anthropic::count_tokens)),
        ("/models", get(models::list)),
        ("/models/{*id}", get(models::one)),
        ("/tokenize", post(tokenize::tokenize)),
        ("/detokenize", post(tokenize::detokenize)),
    ]
}

async fn unknown_route(request: Request) -> Response {
    let message = format!("there is no route {} {}; the API begins at /v1", request.method(), request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "unknown_route", message).into_response()
}

async fn wrong_method(request: Request) -> Response {
    let message = format!("the route {} does not take the method {}; see the header Allow", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

/// No origins: no CORS headers at all, so browsers keep other sites' pages out.
fn cors(options: &ServerOptions) -> Result<CorsLayer, ServerError> {
    if options.cors_origins.is_empty() {
        return Ok(CorsLayer::new());
    }
    let origins = if options.cors_origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(options.cors_origins.iter().map(|origin| parse_origin(origin)).collect::<Result<Vec<_>, _>>()?)
    };
    Ok(CorsLayer::new().allow_origin(origins).allow_methods([Method::GET, Method::POST]).allow_headers(AllowHeaders::mirror_request()))
}

fn parse_origin(origin: &str) -> Result<HeaderValue, ServerError> {
    let refuse = || ServerError::CorsOrigin { origin: origin.to_owned() };
    let (_, host) = origin.split_once("://").ok_or_else(refuse)?;
    if host.is_empty() || host.contains('/') {
        return Err(refuse());
    }
    HeaderValue::from_str(origin).map_err(|_| refuse())
}

/// A key that no header can carry would lock everybody out; an empty one would let everybody in.
fn check_keys(keys: &[String]) -> Result<(), ServerError> {
    for (at, key) in keys.iter().enumerate() {
        let refuse = |what| Err(ServerError::ApiKey { place: at + 1, what });
        if key.is_empty() {
            return refuse("is empty");
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("has characters that a header cannot carry: use visible ASCII without spaces");
        }
    }
    Ok(())
}
