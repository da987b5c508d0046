//! An agent's conversation of thirty turns with lily-nano, as a client sends it: whatever the state cache
//! holds, the answers are the same, and nothing but the new message is computed.
//!
//! [`talk`] plays the client: it sends back what the model said and adds tool results and questions. The
//! bodies of its requests are then replayed without a cache, warm, and after a kill. The simulator of a GPU has a shorter
//! conversation. [`Scale::FULL`] is too long for every test run:
//! `cargo test --release -p lily --test agent -- --ignored --nocapture`.

mod process;

use process::{Server, states_on_disk, until};
use serde_json::{Value, json};

/// Sizes of a conversation, in words of generated text: about 1.3 tokens each.
#[derive(Clone, Copy)]
struct Scale {
    turns: usize,
    tools: usize,
    /// Words of the system prompt.
    system: usize,
    /// Words of the tool results and questions, in turn.
    words: &'static [usize],
    answer_tokens: usize,
    /// So many requests are repeated without a cache: each computes the whole conversation.
    off: usize,
}

impl Scale {
    const SMALL: Scale = Scale { turns: 30, tools: 20, system: 200, words: &[40, 12, 150, 25], answer_tokens: 24, off: 4 };
    /// Results of about 50 to 3,000 tokens: the long ones where `talk` must have a call, in two of three turns.
    const FULL: Scale = Scale { words: &[60, 2300, 30, 120, 500, 40], answer_tokens: 48, off: 8, ..Scale::SMALL };
    /// For a device of some tokens a second.
    #[cfg(unix)]
    const SIMULATED: Scale = Scale { turns: 3, tools: 2, system: 30, words: &[30, 12], answer_tokens: 8, off: 1 };
}

#[derive(Clone, Copy, Debug)]
struct Mode {
    thinking: bool,
    preserve: bool,
}

const MODES: [Mode; 4] = [
    Mode { thinking: false, preserve: false },
    Mode { thinking: true, preserve: false },
    Mode { thinking: false, preserve: true },
    Mode { thinking: true, preserve: true },
];

/// One exchange of a conversation.
struct Turn {
    body: Value,
    answer: Value,
    usage: Usage,
    /// The message before it was a question: the format then drops the thinking of the turns before.
    question: bool,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    prompt: usize,
    cached: usize,
    generated: usize,
    /// From the slot to the first token, as the server measured it: for whoever reads the figures, never asserted.
    prompt_ms: f64,
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    fn text(&mut self, words: usize) -> String {
        const WORDS: [&str; 16] =
            ["the", "fox", "file", "line", "value", "returns", "error", "at", "number", "small", "tree", "{", "}", "is", "42", "open();"];
        let mut text = String::new();
        for n in 0..words {
            text.push_str(WORDS[self.below(WORDS.len())]);
            text.push(if n % 11 == 10 { '\n' } else { ' ' });
        }
        text
    }
}

/// Tools whose arguments a grammar can complete in few tokens.
fn tools(count: usize) -> Value {
    let tool = |n: usize| {
        let properties = json!({
            "path": {"type": "string", "enum": ["src/main.rs", "README.md", "tests/all.rs"], "description": "Where to look"},
            "line": {"type": "integer", "minimum": 1, "maximum": 99, "description": "The line to begin at"},
        });
        let name = format!("{}_{n}", ["read", "search", "list", "edit"][n % 4]);
        let parameters = json!({"type": "object", "properties": properties, "required": ["path", "line"]});
        json!({"type": "function", "function": {"name": name, "description": format!("Tool number {n} of the agent."), "parameters": parameters}})
    };
    (0..count).map(tool).collect()
}

fn body(messages: &[Value], mode: Mode, scale: Scale, must_call: bool) -> Value {
    json!({
        "messages": messages,
        "tools": tools(scale.tools),
        "tool_choice": if must_call { "required" } else { "auto" },
        "parallel_tool_calls": false,
        "temperature": 0,
        "max_tokens": 2 * scale.answer_tokens + 40,
        "enable_thinking": mode.thinking,
        "thinking_budget": if mode.thinking { json!(scale.answer_tokens) } else { Value::Null },
        "preserve_thinking": mode.preserve,
    })
}

fn ask(server: &Server, body: &Value) -> (Value, Usage) {
    let (status, answer) = server.post("/v1/chat/completions", body);
    assert_eq!(status, 200, "{answer}");
    let number = |pointer: &str| answer.pointer(pointer).and_then(Value::as_u64).expect("a count") as usize;
    let usage = Usage {
        prompt: number("/usage/prompt_tokens"),
        cached: number("/usage/prompt_tokens_details/cached_tokens"),
        generated: number("/usage/completion_tokens"),
        prompt_ms: answer.pointer("/timings/prompt_ms").and_then(Value::as_f64).expect("a time"),
    };
    (answer["choices"][0].clone(), usage)
}

/// Plays a conversation; with `aside`, other requests come between its turns.
fn talk(server: &Server, mode: Mode, scale: Scale, aside: bool) -> Vec<Turn> {
    let mut dice = Dice(4711);
    let system = format!("You are an agent that edits files. {}", dice.text(scale.system));
    let mut messages = vec![json!({"role": "system", "content": system}), json!({"role": "user", "content": "Find the error."})];
    let (mut turns, mut question) = (Vec::new(), true);
    for n in 0..scale.turns {
        let must_call = n % 3 != 2;
        let body = body(&messages, mode, scale, must_call);
        let (answer, usage) = ask(server, &body);
        turns.push(Turn { body, answer: answer.clone(), usage, question });
        let said = &answer["message"];
        messages.push(said.clone());
        let words = scale.words[n % scale.words.len()];
        match said["tool_calls"][0]["id"].as_str() {
            Some(id) => messages.push(json!({"role": "tool", "tool_call_id": id, "content": dice.text(words)})),
            None => messages.push(json!({"role": "user", "content": dice.text(words.min(80))})),
        }
        question = messages.last().is_some_and(|message| message["role"] == "user");
        if aside {
            side_request(server, &mut dice);
        }
    }
    turns
}

/// A title, as agents ask for them: a prompt of its own.
fn side_request(server: &Server, dice: &mut Dice) {
    let text = format!("Write a title for this: {}", dice.text(150));
    let body = json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, "enable_thinking": false});
    ask(server, &body);
}

/// Answers to the recorded requests must be what they were.
fn replay<'a>(server: &Server, turns: impl IntoIterator<Item = &'a Turn>, name: &str) -> Vec<Usage> {
    let again = turns.into_iter().enumerate().map(|(n, turn)| {
        let (answer, usage) = ask(server, &turn.body);
        assert_eq!(without_ids(&answer), without_ids(&turn.answer), "{name}, request {n}");
        usage
    });
    again.collect()
}

/// Ids of calls are new each time.
fn without_ids(answer: &Value) -> Value {
    let mut answer = answer.clone();
    for call in answer["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
        call["id"] = Value::Null;
    }
    answer
}

/// Prints what each turn computed and checks that it was little more than what is new in it.
fn check_recomputed(turns: &[Turn], mode: Mode) {
    let (mut known, mut last_question, mut sum) = (0, 0, 0);
    for (n, turn) in turns.iter().enumerate() {
        let Usage { prompt, cached, generated, prompt_ms } = turn.usage;
        let new = prompt.saturating_sub(known);
        let again = (prompt - cached).saturating_sub(new);
        println!("{mode:?} turn {n:2}: prompt {prompt:6}, cached {cached:6}, new {new:5}, computed again {again:5}, {prompt_ms:6.0} ms");
        // A question makes the format drop the thinking of the turns since the last one: they are new text.
        let dropped = if turn.question && !mode.preserve && n > 0 { known - last_question } else { 0 };
        assert!(again <= prompt / 20 + dropped, "{mode:?} turn {n}: {again} of {prompt} tokens were computed again");
        sum += again.saturating_sub(dropped);
        known = prompt + generated;
        if turn.question {
            last_question = prompt;
        }
    }
    println!("{mode:?}: {sum} of {known} tokens were computed again beyond what the format rewrote");
    assert!(sum * 20 <= known, "{mode:?}: {sum} of {known}");
    let calls = turns.iter().filter(|turn| turn.answer["message"]["tool_calls"].is_array()).count();
    assert!(calls * 2 >= turns.len(), "an agent calls tools: {calls} of {} turns", turns.len());
}

/// Rounding differs between a state that was decoded and one that was prefilled: with whole floats too little
/// to change a greedy choice.
const CPU: [&str; 4] = ["--device", "cpu", "--activations", "f32"];
/// Its kernels multiply halves where a pass has many rows; the choices of this conversation are not that close.
#[cfg(unix)]
const SIMULATOR: [&str; 4] = ["--device", "sim", "--context", "4096"];

fn every_way_to_the_same_answers(mode: Mode, scale: Scale, device: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let on_disk = [device, &["--cache-dir", path]].concat();
    let server = Server::start(&on_disk);
    let turns = talk(&server, mode, scale, false);
    check_recomputed(&turns, mode);
    let warm = replay(&server, &turns, "warm");
    assert!(warm.iter().all(|usage| usage.cached * 10 >= usage.prompt * 8), "{mode:?}: {warm:?}");
    // Killed once everything is written: the last answer's end is among it.
    until(|| states_on_disk(directory.path()) as f64 >= server.metric("lily_cache_disk_entries"));
    drop(server);

    let server = Server::start(&on_disk);
    let restored = replay(&server, &turns[turns.len() / 2..], "after the restart");
    assert!(server.metric("lily_cache_lookups_total{result=\"hit_disk\"}") >= 1.0);
    let first = restored[0];
    assert!(first.cached * 10 >= first.prompt * 8, "{mode:?} after the restart: {first:?}");
    drop(server);

    let server = Server::start(&[device, &["--cache-mib", "0"]].concat());
    let off = replay(&server, &turns[..scale.off], "without a cache");
    for (turn, cold) in turns.iter().zip(off) {
        assert_eq!(cold.cached, 0);
        let (warm, cold, prompt) = (turn.usage.prompt_ms, cold.prompt_ms, cold.prompt);
        println!("{mode:?} prompt {prompt:6}: first token after {warm:6.0} ms; after {cold:6.0} ms without a cache");
    }
}

#[test]
fn thinking_off() {
    every_way_to_the_same_answers(MODES[0], Scale::SMALL, &CPU);
}

#[test]
fn thinking_on_and_preserved() {
    every_way_to_the_same_answers(MODES[3], Scale::SMALL, &CPU);
}

#[cfg(unix)]
#[test]
fn thinking_on_the_simulator_of_a_gpu() {
    every_way_to_the_same_answers(MODES[3], Scale::SIMULATED, &SIMULATOR);
}

#[test]
fn side_requests_do_not_evict_it() {
    // Room for the conversation and a handful of states.
    let server = Server::start(&[&CPU[..], &["--cache-mib", "32"]].concat());
    let turns = talk(&server, MODES[3], Scale::SMALL, true);
    check_recomputed(&turns, MODES[3]);
    assert!(server.metric("lily_cache_evicted_for_bytes_total") > 0.0, "the budget was never tight");
    let tail = |n: usize| {
        let mut body = turns[20].body.clone();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "user", "content": format!("Change number {n}.")}));
        ask(&server, &body).1
    };
    tail(1);
    let usage = tail(2);
    assert!(usage.cached * 10 >= usage.prompt * 9, "a changing tail is computed from the last state: {usage:?}");
    let (twice, usage) = ask(&server, &turns[29].body);
    assert_eq!(without_ids(&twice), without_ids(&turns[29].answer), "the same request twice");
    assert!(usage.cached > 0 && usage.cached < usage.prompt);
}

#[test]
#[ignore = "takes minutes: results of up to 3,000 tokens"]
fn full_size_thinking_off() {
    every_way_to_the_same_answers(MODES[0], Scale::FULL, &CPU);
}

#[test]
#[ignore = "takes minutes: results of up to 3,000 tokens"]
fn full_size_thinking_on() {
    every_way_to_the_same_answers(MODES[1], Scale::FULL, &CPU);
}

#[test]
#[ignore = "takes minutes: results of up to 3,000 tokens"]
fn full_size_thinking_off_and_preserved() {
    every_way_to_the_same_answers(MODES[2], Scale::FULL, &CPU);
}

#[test]
#[ignore = "takes minutes: results of up to 3,000 tokens"]
fn full_size_thinking_on_and_preserved() {
    every_way_to_the_same_answers(MODES[3], Scale::FULL, &CPU);
}
