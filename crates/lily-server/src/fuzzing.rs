//! Doors for the fuzz targets of `fuzz/`, which see public items only. Behind the feature `fuzzing`.

use crate::body::parse_object;
use crate::chat::request::ChatRequest;
use crate::completions::request::CompletionRequest;
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::service::{App, Service};
use crate::{anthropic, responses};

/// Reads request bodies up to the point where the engine would be asked.
pub struct Reader(App);

impl Reader {
    pub fn new(service: Service) -> Self {
        Reader(App::new(service, ServerOptions::default()))
    }

    /// Reads `bytes` as a body of route number `route`. An error must be the client's fault.
    pub async fn read(&self, route: u8, bytes: &[u8]) {
        if let Err(error) = self.try_read(route, bytes).await {
            assert!(error.status.is_client_error(), "{error:?}");
            assert!(!error.message.is_empty());
        }
    }

    async fn try_read(&self, route: u8, bytes: &[u8]) -> Result<(), ApiError> {
        let (app, body) = (&self.0, parse_object(bytes)?);
        match route % 4 {
            0 => drop(ChatRequest::read(&body, app)?.job(app).await?),
            1 => drop(CompletionRequest::read(&body, app)?.jobs(app).await?),
            2 => drop(responses::request::read(&body, app)?.job(app).await?),
            _ => drop(anthropic::request::read(&body, app)?.job(app).await?),
        }
        Ok(())
    }
}
