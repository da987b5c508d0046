//! A streamed text completion over HTTP, and when its pieces came.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

/// What a server answered, and when.
#[derive(Debug, Default, PartialEq)]
pub struct Streamed {
    /// Until the first text, and until the last.
    pub first: Duration,
    pub last: Duration,
    /// Pieces of text.
    pub pieces: usize,
    pub text: String,
    /// What the server itself counted, if it said so.
    pub prompt_tokens: Option<usize>,
    pub completion_tokens: Option<usize>,
    pub cached_tokens: Option<usize>,
}

/// Reads server-sent events to their end. `started`: when the request was sent.
pub fn read(body: impl Read, started: Instant) -> anyhow::Result<Streamed> {
    let mut streamed = Streamed::default();
    let mut other = String::new();
    for line in BufReader::new(body).lines() {
        let line = line.context("the stream broke off")?;
        match line.strip_prefix("data:").map(str::trim) {
            Some("[DONE]") => break,
            Some(data) => {
                let event = serde_json::from_str(data).with_context(|| format!("expected an event in JSON, found {data:?}"))?;
                streamed.take(&event, started)?;
            }
            // Comments and names of events; a body that is no stream is kept for the message.
            None if other.len() < 200 => other.push_str(&line),
            None => {}
        }
    }
    if streamed.pieces == 0 {
        bail!("expected a stream of text, found none; the body began with {:?}", other.chars().take(200).collect::<String>());
    }
    Ok(streamed)
}

impl Streamed {
    fn take(&mut self, event: &Value, started: Instant) -> anyhow::Result<()> {
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            bail!("the server says: {}", message(error));
        }
        let text = event["choices"][0]["text"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.last = started.elapsed();
            if self.pieces == 0 {
                self.first = self.last;
            }
            self.pieces += 1;
            self.text.push_str(text);
        }
        let usage = &event["usage"];
        let count = |value: &Value| value.as_u64().map(|count| count as usize);
        self.prompt_tokens = count(&usage["prompt_tokens"]).or(self.prompt_tokens);
        self.completion_tokens = count(&usage["completion_tokens"]).or(self.completion_tokens);
        self.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]).or(self.cached_tokens);
        Ok(())
    }

    /// Tokens of the answer: as the server counted them, else a piece each.
    pub fn tokens(&self) -> usize {
        self.completion_tokens.unwrap_or(self.pieces)
    }
}

/// The text of an error in any of its usual forms.
pub fn message(error: &Value) -> String {
    let text = error.as_str().or_else(|| error["message"].as_str()).or_else(|| error["error"]["message"].as_str());
    text.or_else(|| error["error"].as_str()).map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> anyhow::Result<Streamed> {
        read(body.as_bytes(), Instant::now())
    }

    #[test]
    fn usage_in_a_chunk_of_its_own_counts() {
        let body = concat!(
            ": a comment\n\n",
            "data: {\"choices\": [{\"text\": \"\"}]}\n\n",
            "data: {\"choices\": [{\"text\": \"ab\"}], \"usage\": null}\n\n",
            "data: {\"choices\": [{\"text\": \"c\"}]}\n\n",
            "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 3}}\n\n",
            "data: [DONE]\n\ndata: never read\n\n",
        );
        let streamed = parse(body).unwrap();
        assert_eq!((streamed.text.as_str(), streamed.pieces, streamed.tokens(), streamed.prompt_tokens), ("abc", 2, 3, Some(7)));
    }

    #[test]
    fn without_usage_pieces_are_counted_and_no_done_is_needed() {
        let streamed = parse("data:{\"choices\":[{\"text\":\"x\"}]}\n\ndata:{\"choices\":[{\"text\":\"y\"}]}\n\n").unwrap();
        assert_eq!((streamed.tokens(), streamed.prompt_tokens, streamed.cached_tokens), (2, None, None));
    }

    #[test]
    fn errors_say_what_came_instead() {
        let error = |body: &str| format!("{:#}", parse(body).unwrap_err());
        assert!(error("data: {\"error\": {\"message\": \"out of memory\"}}\n\n").contains("the server says: out of memory"));
        assert!(error("{\"choices\": []}").contains("found none; the body began with \"{\\\"choices\\\""));
        assert!(error("data: {broken\n\n").contains("expected an event in JSON"));
        assert!(error("").contains("found none"));
    }
}
