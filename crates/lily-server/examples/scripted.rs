//! A real server over a model that says what a file says: for agents, whose protocol is to be tried and not
//! the model's wits. The file is a JSON array of `{"key": …, "answer": …}`: the model gives the answer whose
//! key stands last in the conversation. `tools/agents/run.py` uses it.
//!
//! `cargo run -p lily-server --example scripted -- script.json [trace directory]`

#[allow(dead_code)]
#[path = "../tests/server/device.rs"]
mod device;

use std::path::Path;
use std::sync::{Arc, Mutex};

use lily_engine::{Engine, Options};
use lily_model::{Capacity, ModelConfig, Runner};
use lily_server::{ServerOptions, Service, bind, serve};
use lily_text::Text;
use serde_json::Value;

use device::{Script, ScriptedDevice};

/// Agents begin with long instructions.
const CONTEXT: usize = 131_072;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let script = arguments.next().expect("the script's path as the first argument");
    let trace_dir = arguments.next().map(Into::into);

    let config = ModelConfig { context_max: CONTEXT, ..ModelConfig::from_json(&model_file("config.json")).expect("the configuration") };
    let text = Arc::new(text(&config));
    let scripts = Arc::new(Mutex::new(scripts(&script, &text)));
    let capacity = Capacity { slots: 4, pages: 4 * CONTEXT / 256, rows: 1024, logit_rows: 8 };
    let device = ScriptedDevice::new(text.clone(), scripts, &config, capacity);
    let engine = Engine::start(Runner::new(config, device).expect("a runner"), Options { context: CONTEXT, ..Options::default() });

    let options = ServerOptions { port: 0, trace_dir, ..ServerOptions::default() };
    let listener = bind(&options).await.expect("a free port");
    println!("http://{}", listener.local_addr().expect("an address"));
    serve(listener, Service::new(engine, text, "scripted"), options, std::future::pending()).await.expect("valid options");
}

fn scripts(path: &str, text: &Text) -> Vec<Script> {
    let file = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let steps: Vec<Value> = serde_json::from_slice(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let step = |step: &Value| {
        let part = |name: &str| step[name].as_str().unwrap_or_else(|| panic!("{path}: a step without {name}")).to_owned();
        let answer = text.encode(&part("answer")).expect("any text has tokens");
        Script { key: part("key"), answer: answer.into_iter().map(|token| vec![token]).collect(), ..Script::default() }
    };
    steps.iter().map(step).collect()
}

fn model_file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-nano").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(config: &ModelConfig) -> Text {
    let template = String::from_utf8(model_file("chat_template.jinja")).expect("the template is text");
    let tokenizer = model_file("tokenizer.json");
    Text::load(&tokenizer, None, None, Some(&template), &config.eos, config.vocab).expect("the bundled tokenizer")
}
