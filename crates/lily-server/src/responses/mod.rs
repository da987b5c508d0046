//! `POST /v1/responses`: OpenAI's newer API, without the server-side store: every request brings its whole
//! conversation.

mod items;
mod reply;
pub(crate) mod request;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use crate::access::Record;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::generate::Answers;
use crate::service::{App, unix_seconds};
use crate::sse;
use reply::{ResponseStream, whole};

pub(crate) async fn create(
    State(app): State<App>,
    Extension(record): Extension<Record>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = request::read(&body, &app)?;
    let stream = request.stream;
    let job = request.job(&app).await?;
    let answers = Answers::start(&app, &record, vec![job])?;
    let frame = frame(&app, &body);
    if !stream {
        return Ok(Json(whole(&app, frame, answers).await?).into_response());
    }
    Ok(sse::respond(answers, ResponseStream::new(&app, frame), app.options.keep_alive))
}

/// The response object before its output: what it is, and what the request asked for, said back.
fn frame(app: &App, body: &Map<String, Value>) -> Map<String, Value> {
    let asked = |name: &str, default: Value| body.get(name).filter(|value| !value.is_null()).cloned().unwrap_or(default);
    let sampling = &app.service.sampling;
    let frame = json!({
        "id": app.new_id("resp_"),
        "object": "response",
        "created_at": unix_seconds(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": asked("instructions", Value::Null),
        "max_output_tokens": asked("max_output_tokens", Value::Null),
        "metadata": asked("metadata", json!({})),
        "model": app.service.model,
        "output": [],
        "parallel_tool_calls": asked("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": asked("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": asked("temperature", json!(sampling.temperature)),
        "text": asked("text", json!({"format": {"type": "text"}})),
        "tool_choice": asked("tool_choice", json!("auto")),
        "tools": asked("tools", json!([])),
        "top_p": asked("top_p", json!(sampling.top_p)),
        "truncation": "disabled",
        "usage": null,
        "user": asked("user", Value::Null),
    });
    match frame {
        Value::Object(frame) => frame,
        _ => Map::new(), // an object was written above
    }
}
