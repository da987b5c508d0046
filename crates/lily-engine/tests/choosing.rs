//! What is told about a choice, and what restricts it: log-probabilities and constraints, over the fake device.

mod fake;

use std::sync::Arc;

use fake::{FakeDevice, Probe, continuation, greedy, hear};
use lily_engine::{Constraint, Engine, Event, Options, Request};
use lily_model::Capacity;

fn start() -> Engine {
    let capacity = Capacity { slots: 4, pages: 40, rows: 128, logit_rows: 8 };
    Engine::start(FakeDevice::runner(capacity, Arc::new(Probe::default())), Options::default())
}

#[test]
fn logprobs_are_those_of_the_logits() {
    let engine = start();
    let mut generation = engine.submit(Request { logprobs: Some(3), ..greedy(vec![8, 9], 2) }).unwrap();
    let mut tokens = vec![8, 9];
    while let Some(event) = generation.next_blocking() {
        let Event::Token { id, logprobs } = event else { continue };
        let logprobs = logprobs.unwrap();
        let logits = fake::logits_after(&tokens);
        let total: f64 = logits.iter().map(|&logit| (logit as f64).exp()).sum();
        assert!((logprobs.chosen as f64 - (logits[id as usize] as f64 - total.ln())).abs() < 1e-5);
        assert_eq!((logprobs.top.len(), logprobs.top[0]), (3, (id, logprobs.chosen)));
        tokens.push(id);
    }
    assert_eq!(tokens.len(), 4);
}

/// Allows only even tokens, then forces 5, then allows nothing, then panics.
struct Fickle(usize);

impl Constraint for Fickle {
    fn allowed(&mut self) -> Option<Vec<u32>> {
        match self.0 {
            0..=5 => Some(vec![0x5555_5555; 3]),
            6 => panic!("a bug of the grammar"),
            _ => Some(vec![0, 0, 0, 1 << 31]),
        }
    }
    fn accept(&mut self, token: u32) {
        assert!(self.0 == 5 || token.is_multiple_of(2));
        self.0 += 1;
    }
    fn forced(&mut self) -> Option<u32> {
        (self.0 == 5).then_some(5)
    }
}

#[test]
fn constraints_choose_and_their_faults_stay_theirs() {
    let engine = start();
    for (stage, message) in [(0, "constraint: it panicked"), (7, "constraint: it allows no token")] {
        let other = engine.submit(greedy(vec![6], 50)).unwrap();
        let found = hear(engine.submit(Request { constraint: Some(Box::new(Fickle(stage))), ..greedy(vec![1], 50) }).unwrap());
        assert_eq!(found.end.unwrap_err(), message);
        if stage == 0 {
            assert_eq!((found.tokens.len(), found.tokens[5]), (6, 5));
        }
        assert_eq!(hear(other).tokens, continuation(&[6], 50));
    }
}
