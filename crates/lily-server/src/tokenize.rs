//! `POST /tokenize` and `/detokenize`: the tokenizer alone. llama.cpp's field names, and vLLM's.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::body::JsonBody;
use crate::chat::request::ChatRequest;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::sampling::token_ids;
use crate::service::App;

/// `content` or `prompt` is encoded as it stands; `messages` (with `tools`) are rendered first.
pub(crate) async fn tokenize(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new("", &body);
    let tokens = if fields.get("messages").is_some() {
        ChatRequest::read(&body, &app)?.job(&app).await?.prompt
    } else {
        let Some(text) = fields.string("content")?.or(fields.string("prompt")?) else {
            return Err(ApiError::field("content", "this field, or `prompt` or `messages`, is required"));
        };
        let (encoder, text) = (app.service.text.clone(), text.to_owned());
        let encoding = tokio::task::spawn_blocking(move || encoder.encode(&text));
        encoding.await.map_err(|_| ApiError::internal("encoding the text failed"))??
    };
    let mut answer = json!({"count": tokens.len(), "max_model_len": app.service.engine.context(), "tokens": tokens});
    if fields.bool("with_pieces")?.unwrap_or(false) || fields.bool("return_token_strs")?.unwrap_or(false) {
        let piece = |token: &u32| app.service.text.decode(std::slice::from_ref(token));
        answer["token_strs"] = tokens.iter().map(piece).collect::<Result<Vec<_>, _>>()?.into();
    }
    Ok(Json(answer))
}

pub(crate) async fn detokenize(State(app): State<App>, JsonBody(body): JsonBody) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new("", &body);
    fields.required("tokens")?;
    let tokens = token_ids("tokens", fields.array("tokens")?.unwrap_or_default())?;
    let text = app.service.text.decode(&tokens)?;
    Ok(Json(json!({"content": text, "prompt": text})))
}
