//! Another engine, measured from outside: any server with an OpenAI-compatible `/v1/completions`.
//!
//! It gets the same prompts as token ids where it takes them, otherwise a text of that many tokens of our tokenizer, and
//! streams its greedy answer. A server may keep prompts it has seen, so each has two first tokens (or a first word) of its own; only
//! the tokens that the server itself counted, where it counts, enter the rates.

use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use lily_model::ModelConfig;
use lily_text::Text;
use serde_json::{Value, json};

use super::arm::{Arm, Found};
use super::measure::{Report, Sample};
use super::prompt::{Digest, prompt};
use super::stream::{self, Streamed};
use crate::cli::BenchArgs;

/// Repeated as often as needed where the server takes text only.
const WORDS: &str = " the river runs past the old mill and the children count the boats that come down to the sea";

/// A server that answered.
pub struct Server {
    agent: ureq::Agent,
    /// Without `/v1`.
    address: String,
    model: String,
    key: Option<String>,
    vocab: usize,
    decode: usize,
    form: Form,
    /// Encodes and decodes where prompts are text.
    text: Option<Text>,
    warm: Vec<usize>,
    notes: Vec<String>,
}

/// How the server wants to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    tokens: bool,
    /// It knows `ignore_eos`, so that no answer ends early.
    goes_on: bool,
}

const FORMS: [Form; 4] = [
    Form { tokens: true, goes_on: true },
    Form { tokens: true, goes_on: false },
    Form { tokens: false, goes_on: true },
    Form { tokens: false, goes_on: false },
];

impl Server {
    /// Asks the server for its model, and a short question in one form after another until it answers.
    pub fn connect(url: &str, args: &BenchArgs, config: &ModelConfig, text: impl Fn() -> anyhow::Result<Text>) -> anyhow::Result<Self> {
        let address = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut server = Server {
            agent,
            model: String::new(),
            key: args.against_key.clone(),
            vocab: config.vocab,
            decode: args.decode,
            form: FORMS[0],
            text: None,
            warm: Vec::new(),
            notes: Vec::new(),
            address,
        };
        let place = format!("--against {url}");
        server.model = match &args.against_model {
            Some(model) => model.clone(),
            None => server.first_model().context(place.clone())?,
        };
        let mut refused = Vec::new();
        for form in FORMS {
            if !form.tokens && server.text.is_none() {
                server.text = Some(text()?);
            }
            server.form = form;
            match server.ask(8, 0, 2) {
                Ok(_) => return Ok(server),
                Err(error) => refused.push(format!("{error:#}")),
            }
        }
        refused.dedup();
        Err(anyhow!("no form of /v1/completions is answered: {}", refused.join("; then: "))).context(place)
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn first_model(&self) -> anyhow::Result<String> {
        let mut response = self.with_key(self.agent.get(format!("{}/v1/models", self.address))).call()?;
        let body = response.body_mut().read_to_string()?;
        let models: Value = serde_json::from_str(&body).unwrap_or(Value::String(body));
        if response.status().as_u16() != 200 {
            bail!("/v1/models: {}: {}", response.status(), stream::message(&models));
        }
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_owned).context("/v1/models names no model; give --against-model")
    }

    /// An arm without samples.
    pub fn found(&self) -> Found {
        let mut found = Found::new(Arm::new(self.model.clone(), 1));
        found.device = self.address.clone();
        found
    }

    /// One round. The process lives on, so each shape is warmed up once.
    pub fn measure(&mut self, lengths: &[usize], round: usize, report: &mut dyn FnMut(Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
        for &length in lengths {
            if !self.warm.contains(&length) {
                self.ask(length, 0, self.decode + 1)?;
                self.warm.push(length);
            }
            let streamed = self.ask(length, 1 + round, self.decode + 1)?;
            report(Report::Sample(self.sample(length, &streamed)?))?;
        }
        Ok(())
    }

    fn sample(&mut self, length: usize, streamed: &Streamed) -> anyhow::Result<Sample> {
        let (tokens, decode_s) = (streamed.tokens(), (streamed.last - streamed.first).as_secs_f64());
        if tokens < 2 || decode_s == 0.0 {
            bail!("{length} tokens: expected an answer that comes piece by piece, found {tokens} tokens at once: no rate can be told");
        }
        let mut note = |note: String| {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        };
        if streamed.completion_tokens.is_none() {
            note("the server does not count its tokens: a piece of the stream is taken for one, and the prompt for as long as it was meant to be".into());
        }
        if let Some(cached) = streamed.cached_tokens.filter(|&cached| cached * 20 > length) {
            note(format!("the server took {cached} of {length} prompt tokens from its cache"));
        }
        if tokens <= self.decode {
            note(format!("answers ended early: {tokens} of {} tokens after a prompt of {length}", self.decode + 1));
        }
        let prompt_tokens = streamed.prompt_tokens.unwrap_or(length);
        Ok(Sample { length, prompt_tokens, prefill_s: streamed.first.as_secs_f64(), decoded: tokens - 1, decode_s, digest: String::new() })
    }

    /// What was seen on the way, and whether the server repeats itself.
    pub fn notes(mut self, length: usize) -> anyhow::Result<Vec<String>> {
        let prompts = if self.form.tokens { "the same token ids but for the first two" } else { "text, as it takes no token ids" };
        self.notes.insert(0, format!("prompts for the server: {prompts}"));
        let digests = [self.ask(length, 0, self.decode + 1)?, self.ask(length, 0, self.decode + 1)?].map(|streamed| digest(&streamed.text));
        self.notes.push(match digests {
            [first, second] if first == second => format!("asked the same twice, the server gives the same text, digest {first}"),
            [first, second] => format!("asked the same twice, the server gives two texts, digests {first} and {second}"),
        });
        Ok(self.notes)
    }

    /// One question: `variant` is what sets it apart from others of the length.
    fn ask(&self, length: usize, variant: usize, answer: usize) -> anyhow::Result<Streamed> {
        let mut body = json!({
            "model": self.model,
            "prompt": self.prompt(length, variant)?,
            "max_tokens": answer,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.form.goes_on {
            body["ignore_eos"] = json!(true);
        }
        let request = self.agent.post(format!("{}/v1/completions", self.address)).header("Content-Type", "application/json");
        let request = self.with_key(request);
        let body = body.to_string();
        let started = Instant::now();
        let mut response = request.send(&body)?;
        if response.status().as_u16() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let error = serde_json::from_str(&text).unwrap_or(Value::String(text));
            bail!("{}: {}", response.status(), stream::message(&error));
        }
        stream::read(response.into_body().into_reader(), started)
    }

    fn prompt(&self, length: usize, variant: usize) -> anyhow::Result<Value> {
        // No two of a bench begin alike: lengths differ by far more than there are rounds.
        let sign = length + 7919 * variant;
        let Some(text) = self.text.as_ref().filter(|_| !self.form.tokens) else {
            let signature = [sign % self.vocab, sign / self.vocab].map(|token| token as u32);
            let rest = prompt(length, 0, self.vocab).into_iter().skip(2);
            return Ok(json!(signature.into_iter().chain(rest).take(length).collect::<Vec<u32>>()));
        };
        let mut tokens = text.encode(&format!("{sign}:"))?;
        let words = text.encode(WORDS)?;
        tokens.extend(words.iter().cycle().take(length.saturating_sub(tokens.len())));
        Ok(json!(text.decode(&tokens)?))
    }
}

fn digest(text: &str) -> Digest {
    let mut digest = Digest::new();
    digest.bytes(text.as_bytes());
    digest
}
