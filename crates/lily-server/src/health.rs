//! `GET /health`: alive, and with what.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::service::App;

pub(crate) async fn show(State(app): State<App>) -> Json<Value> {
    let stats = app.service.engine.stats();
    Json(json!({
        "status": "ok",
        "model": app.service.model,
        "device": app.service.engine.device_name(),
        "context": app.service.engine.context(),
        "running": stats.running(),
        "waiting": stats.waiting,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}
