//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API over the same path as chat completions.

mod blocks;
mod reply;
pub(crate) mod request;

use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use crate::access::Record;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::generate::Answers;
use crate::service::App;
use crate::sse;
use reply::{MessageStream, whole};

/// Whether errors of this path must have Anthropic's shape.
pub(crate) fn speaks(path: &str) -> bool {
    path.strip_prefix("/v1").unwrap_or(path).starts_with("/messages")
}

/// An error as a whole answer.
pub(crate) fn refuse(error: &ApiError) -> Response {
    error.with_body(error_body(error))
}

fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

/// A body whose refusal has Anthropic's shape.
pub(crate) struct Body(Map<String, Value>);

impl FromRequest<App> for Body {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let read = JsonBody::from_request(request, app).await;
        read.map(|JsonBody(body)| Body(body)).map_err(|error| refuse(&error))
    }
}

pub(crate) async fn create(State(app): State<App>, Extension(record): Extension<Record>, Body(body): Body) -> Response {
    answer(app, record, body).await.unwrap_or_else(|error| refuse(&error))
}

async fn answer(app: App, record: Record, body: Map<String, Value>) -> Result<Response, ApiError> {
    let request = request::read(&body, &app)?;
    let stream = request.stream;
    let job = request.job(&app).await?;
    let prompt_tokens = job.prompt.len();
    let answers = Answers::start(&app, &record, vec![job])?;
    if !stream {
        return Ok(Json(whole(&app, answers).await?).into_response());
    }
    let format = MessageStream::new(&app, prompt_tokens);
    Ok(sse::respond(answers, format, app.options.keep_alive))
}

pub(crate) async fn count_tokens(State(app): State<App>, Body(body): Body) -> Response {
    match count(app, body).await {
        Ok(tokens) => Json(json!({"input_tokens": tokens})).into_response(),
        Err(error) => refuse(&error),
    }
}

async fn count(app: App, body: Map<String, Value>) -> Result<usize, ApiError> {
    Ok(request::read(&body, &app)?.job(&app).await?.prompt.len())
}
