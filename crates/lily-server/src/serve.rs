//! Accepting connections, and stopping: the loop around the router.

use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::options::{ServerError, ServerOptions};
use crate::router::router;
use crate::service::{App, Service};
use crate::trace;

/// After the drain: time for the error events of cut-off answers to leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until `shutdown` completes; then takes no new connection, lets running answers finish for the
/// drain time, cuts off the rest with an error that says so, and stops the engine.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    trace::prepare(&options)?;
    let app = App::new(service, options);
    let router = router(app.clone())?;
    index_vocabulary(&app)?;
    recall(&app).await;
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(app.options.connections_max));
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let (stream, permit) = tokio::select! {
            (accepted, permit) = accept(&listener, &permits) => match accepted {
                Ok(stream) => (stream, permit),
                Err(error) => {
                    // Out of file descriptors, most likely: give connections time to end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(app.options.header_timeout)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let serving = graceful.watch(serving);
        connections.spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "shutting down");
    drain(&app, graceful).await;
    connections.shutdown().await;
    stop_engine(&app).await;
    Ok(())
}

/// Conversations whose states are on disk must render to the tokens that they were.
async fn recall(app: &App) {
    let (text, engine) = (app.service.text.clone(), app.service.engine.clone());
    let recalling = tokio::task::spawn_blocking(move || engine.take_found_on_disk().iter().for_each(|tokens| text.known(tokens)));
    if recalling.await.is_err() {
        tracing::error!("the conversations on disk could not be read");
    }
}

/// The first answer that is held to a form should not wait for the vocabulary to be indexed.
fn index_vocabulary(app: &App) -> Result<(), ServerError> {
    let text = app.service.text.clone();
    let work = move || {
        if let Err(error) = text.prepare_constraints() {
            tracing::warn!(%error, "structured output will fail");
        }
    };
    thread::Builder::new().name("lily-vocabulary".into()).spawn(work).map(drop).map_err(ServerError::Thread)
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> (std::io::Result<TcpStream>, tokio::sync::OwnedSemaphorePermit) {
    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
    let accepted = listener.accept().await.map(|(stream, _)| stream);
    if let Ok(stream) = &accepted {
        // Tokens are small writes: waiting to fill a packet would delay each by a round trip.
        let _ = stream.set_nodelay(true);
    }
    (accepted, permit)
}

/// Waits for the connections to end by themselves, then for the engine to end their answers.
async fn drain(app: &App, graceful: GracefulShutdown) {
    let ended = graceful.shutdown();
    tokio::pin!(ended);
    if tokio::time::timeout(app.options.drain_timeout, &mut ended).await.is_ok() {
        return;
    }
    tracing::warn!("answers still run after the drain time: they are cut off");
    stop_engine(app).await;
    let _ = tokio::time::timeout(FAREWELL, ended).await;
}

/// Stops the engine's thread off the runtime's: joining it blocks.
async fn stop_engine(app: &App) {
    let engine = app.service.engine.clone();
    if tokio::task::spawn_blocking(move || engine.shutdown(false)).await.is_err() {
        tracing::error!("the engine's thread ended in a panic");
    }
}
