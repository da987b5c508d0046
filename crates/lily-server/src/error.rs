//! What a client hears when something is wrong: OpenAI's error object with the right status.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::EngineError;
use lily_text::TextError;
use serde_json::{Value, json};

/// A refused or failed request. `param` is the field at fault, as a path such as `messages[2].role`.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        ApiError { status, kind, message: message.into(), param: None, code: Some(code), retry_after_s: None }
    }

    /// A field with a value that cannot be used: 400.
    pub fn field(path: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let path = path.into();
        let message = format!("{path}: {message}");
        ApiError { param: Some(path), ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
    }

    /// A field whose value is understood and which this server does not do: 400.
    pub fn unsupported(path: impl Into<String>, message: impl std::fmt::Display) -> Self {
        ApiError { code: Some("unsupported_value"), ..ApiError::field(path, message) }
    }

    /// A fault of this server: 500.
    pub fn internal(message: &str) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// `{"error": {...}}`, as a body and as an event of a stream.
    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }

    /// The answer with another API's body but this error's status and headers.
    pub fn with_body(&self, body: Value) -> Response {
        let mut response = (self.status, axum::Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.with_body(self.to_json())
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt => ApiError::new(StatusCode::BAD_REQUEST, "empty_prompt", message),
            EngineError::PromptTooLong { .. } => ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message),
            EngineError::UnknownToken { .. } => ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message),
            EngineError::QueueFull { .. } => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).retry_after(1),
            EngineError::ShuttingDown => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).retry_after(5),
            EngineError::Sampling { .. } => ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        ApiError::from(&error)
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let code = match &error {
            TextError::NoChatTemplate => "no_chat_template",
            TextError::Template(_) => "template_refused",
            _ => "invalid_value",
        };
        ApiError::new(StatusCode::BAD_REQUEST, code, error.to_string())
    }
}
