//! `POST /v1/completions`: text goes on as it stands, no chat format around it.

mod reply;
pub(crate) mod request;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::access::Record;
use crate::body::JsonBody;
use crate::chat::reply::Heading;
use crate::error::ApiError;
use crate::generate::Answers;
use crate::service::App;
use crate::sse;
use reply::{CompletionStream, Shape, whole};
use request::CompletionRequest;

pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = CompletionRequest::read(&body, &app)?;
    let (stream, include_usage) = (request.stream, request.include_usage);
    let (per_prompt, with_logprobs) = (request.choices, request.logprobs.is_some());
    let (jobs, echoes) = request.jobs(&app).await?;
    let answers = Answers::start(&app, &record, jobs)?;
    let keep_alive = app.options.keep_alive;
    let heading = Heading::new(&app, "cmpl-");
    let shape = Shape { app, heading, per_prompt, echoes, with_logprobs };
    if stream {
        return Ok(sse::respond(answers, CompletionStream::new(shape, include_usage), keep_alive));
    }
    Ok(Json(whole(&shape, answers).await?).into_response())
}
