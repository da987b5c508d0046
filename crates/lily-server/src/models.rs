//! `GET /v1/models` and `/v1/models/{id}`: the one model.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::service::App;

pub(crate) async fn list(State(app): State<App>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model(&app)]}))
}

/// Unlike a generation request, a question about a model is about that model: other names are unknown.
pub(crate) async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if id == app.service.model {
        return Ok(Json(model(&app)));
    }
    let message = format!("there is no model {id:?}; this server has {:?}", app.service.model);
    Err(ApiError { param: Some("model".to_owned()), ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) })
}

fn model(app: &App) -> Value {
    let context = app.service.engine.context();
    json!({
        "id": app.service.model,
        "object": "model",
        "created": app.started_unix_s,
        "owned_by": "lily",
        // What clients look for when they plan a conversation: vLLM's name, and the plain one.
        "max_model_len": context,
        "context_length": context,
    })
}
