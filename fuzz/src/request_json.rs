//! Any bytes as a request's body: read, rendered and compiled, or refused as the client's fault.
//!
//! Input: a byte for the route, then the body.

use std::sync::{Arc, OnceLock};

use lily_cpu::{CpuDevice, CpuOptions};
use lily_engine::{Engine, Options};
use lily_model::{Capacity, Checkpoint, Runner, Weights};
use lily_server::Service;
use lily_server::fuzzing::Reader;

use super::{config, load_text, model_folder};

/// The engine is there because a service has one; nothing is generated.
fn reader() -> &'static (Reader, tokio::runtime::Runtime) {
    static READER: OnceLock<(Reader, tokio::runtime::Runtime)> = OnceLock::new();
    READER.get_or_init(|| {
        let checkpoint = Checkpoint::open(&model_folder()).expect("the bundled checkpoint");
        let config = config();
        let weights = Weights::load(&checkpoint, &config).expect("the bundled weights");
        let capacity = Capacity { slots: 1, pages: 4, rows: 32, logit_rows: 8 };
        let device =
            CpuDevice::new(&config, &weights, capacity, CpuOptions { threads: Some(1), ..CpuOptions::default() }).expect("a device");
        let engine = Engine::start(Runner::new(config, device).expect("a runner"), Options { context: 1024, ..Options::default() });
        let service = Service::new(engine, Arc::new(load_text()), "lily-nano");
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        (Reader::new(service), runtime)
    })
}

pub fn run(data: &[u8]) {
    let Some((&route, body)) = data.split_first() else { return };
    let (reader, runtime) = reader();
    runtime.block_on(reader.read(route, body));
}
