//! `lily serve`: the OpenAI-compatible API.

use anyhow::Context;
use lily_server::{ServerOptions, Service};

use crate::cli::ServeArgs;
use crate::session::{self, Limits};

pub fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let options = options(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        // The port first: a busy one should show before a large model is opened.
        let listener = lily_server::bind(&options).await?;
        let limits = Limits {
            slots: args.slots.into(),
            queue: args.queue,
            cache_bytes: args.cache_mib << 20,
            disk: args.cache_dir.map(|directory| (directory, args.cache_dir_mib << 20)),
        };
        let session = session::start(&args.model, &limits)?;
        let service = Service::new(session.engine, session.text, session.name);
        let stop = stop_signal()?;
        tracing::info!("{} on {}: http://{}/v1", service.model, service.engine.device_name(), listener.local_addr()?);
        lily_server::serve(listener, service, options, stop).await?;
        Ok(())
    })
}

fn options(args: &ServeArgs) -> anyhow::Result<ServerOptions> {
    let mut api_keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read --api-key-file {}", file.display()))?;
        api_keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string));
    }
    if !args.host.is_loopback() && api_keys.is_empty() {
        tracing::warn!("listening on {} without an API key: whoever reaches this machine can use the model", args.host);
    }
    if let Some(directory) = &args.trace {
        tracing::warn!("prompts and answers are written to {}", directory.display());
    }
    Ok(ServerOptions {
        host: args.host.to_string(),
        port: args.port,
        api_keys,
        cors_origins: args.cors.clone(),
        body_limit_bytes: args.body_limit_mib << 20,
        trace_dir: args.trace.clone(),
        ..ServerOptions::default()
    })
}

/// Completes on Ctrl-C, or on the signal by which a service manager ends a program. Listens from the call on,
/// not from the first wait: whoever reads that the server is up may stop it at once.
#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Completes on Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
