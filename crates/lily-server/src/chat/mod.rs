//! `POST /v1/chat/completions`. Start with [`create`]: read, render, submit, answer.

pub(crate) mod messages;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod thinking;
pub(crate) mod tools;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::access::Record;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::generate::Answers;
use crate::service::App;
use crate::sse;
use crate::usage::Total;
use reply::{ChatStream, Heading, whole};
use request::ChatRequest;

pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = ChatRequest::read(&body, &app)?;
    let (stream, include_usage, choices) = (request.stream, request.include_usage, request.choices);
    let with_logprobs = request.logprobs.is_some();
    let job = request.job(&app).await?;
    let answers = Answers::start(&app, &record, vec![job])?;
    if !stream {
        return Ok(Json(whole(&app, answers, choices, with_logprobs).await?).into_response());
    }
    let heading = Heading::new(&app, "chatcmpl-");
    let keep_alive = app.options.keep_alive;
    let format = ChatStream { app, heading, choices, include_usage, with_logprobs, total: Total::default() };
    Ok(sse::respond(answers, format, keep_alive))
}
