//! A server on a free port, with the bundled model's tokenizer and chat format and scripted answers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lily_engine::{Engine, Options};
use lily_model::{Capacity, ModelConfig, Runner};
use lily_server::{ServerError, ServerOptions, Service, bind, serve};
use lily_text::Text;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::device::{Script, ScriptedDevice, Scripts, lock};

fn model_file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn config() -> &'static ModelConfig {
    static CONFIG: OnceLock<ModelConfig> = OnceLock::new();
    CONFIG.get_or_init(|| ModelConfig::from_json(&model_file("config.json")).expect("the bundled configuration"))
}

/// Loading the tokenizer takes a while: once for all tests.
pub fn text() -> Arc<Text> {
    static TEXT: OnceLock<Arc<Text>> = OnceLock::new();
    let load = || {
        let template = String::from_utf8(model_file("chat_template.jinja")).expect("the template is text");
        let (tokenizer, generation) = (model_file("tokenizer_config.json"), model_file("generation_config.json"));
        let (config, tokens) = (config(), model_file("tokenizer.json"));
        let text = Text::load(&tokens, Some(&tokenizer), Some(&generation), Some(&template), &config.eos, config.vocab);
        Arc::new(text.expect("the bundled tokenizer"))
    };
    TEXT.get_or_init(load).clone()
}

const CAPACITY: Capacity = Capacity { slots: 4, pages: 64, rows: 256, logit_rows: 8 };

/// What a test may want otherwise.
pub struct Setup {
    pub server: ServerOptions,
    pub engine: Options,
    pub device: Capacity,
}

impl Default for Setup {
    fn default() -> Self {
        let server = ServerOptions { port: 0, ..ServerOptions::default() };
        let engine = Options { context: 2048, ..Options::default() };
        Setup { server, engine, device: CAPACITY }
    }
}

pub struct TestServer {
    pub address: SocketAddr,
    pub engine: Engine,
    scripts: Scripts,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub async fn with(setup: Setup) -> Self {
        let scripts = Scripts::default();
        let engine = engine(&scripts, setup.engine, setup.device);
        let service = Service::new(engine.clone(), text(), "lily-test");
        let listener = bind(&setup.server).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            serve(listener, service, setup.server, shutdown).await.expect("valid options");
        });
        TestServer { address, engine, scripts, stop: Some(stop), serving }
    }

    /// Why a server does not start.
    pub async fn refused(options: ServerOptions) -> ServerError {
        let engine = engine(&Scripts::default(), Options::default(), CAPACITY);
        let listener = bind(&options).await.expect("a free port");
        serve(listener, Service::new(engine, text(), "lily-test"), options, std::future::pending())
            .await
            .expect_err("options that are refused")
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// To a prompt whose last message contains `key` the model answers the pieces, each encoded by itself.
    pub fn says(&self, key: &str, pieces: &[&str]) {
        self.script(Script { key: key.to_owned(), answer: answer(pieces), ..Script::default() });
    }

    pub fn script(&self, script: Script) {
        lock(&self.scripts).push(script);
    }

    /// Waits until the server has seen so many clients leave before they had their answer.
    pub async fn has_seen_leave(&self, clients: usize) {
        loop {
            let metrics = self.client().get("/metrics").await.text;
            let left = metrics.lines().filter(|line| line.starts_with("lily_http_requests_total") && line.contains("status=\"499\""));
            if left.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum::<usize>() >= clients {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Forgets all scripts.
    pub fn unscript(&self) {
        lock(&self.scripts).clear();
    }

    /// Begins the shutdown and waits for its end.
    pub async fn stop(mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.serving.await.expect("the server ends without a panic");
    }

    /// Begins the shutdown only.
    pub fn begin_stop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }
}

fn engine(scripts: &Scripts, options: Options, capacity: Capacity) -> Engine {
    let device = ScriptedDevice::new(text(), scripts.clone(), config(), capacity);
    Engine::start(Runner::new(config().clone(), device).expect("a runner"), options)
}

/// Pieces of text as answer tokens. Each piece is encoded alone, so `"</"`, `"think>"` is text and
/// `"</think>"` is the tag.
pub fn answer(pieces: &[&str]) -> Vec<Vec<u32>> {
    pieces.iter().flat_map(|piece| text().encode(piece).expect("pieces encode")).map(|token| vec![token]).collect()
}
