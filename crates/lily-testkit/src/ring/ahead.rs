//! Two steps in flight: tokens that stay on the device until the next pass, against tokens that go through the host.

use std::collections::VecDeque;

use lily_model::{Batch, Choice, Device, Logits, NEXT, Runner, Selection, StateCopy};

use super::Subject;
use super::rig::{Sequence, open};
use crate::generate::Rng;

/// Tokens of the prompts; the last one comes while the others decode.
const PROMPTS: [usize; 4] = [5, 40, 1, 20];

/// Who decodes, for how many steps. A sequence that has ended leaves the others in their rows, or moves them up.
const PHASES: [(&[usize], usize); 4] = [(&[0, 1, 2], 7), (&[0, 1], 4), (&[0, 1, 3], 5), (&[1, 3], 3)];

/// What each sequence said, and the states of those that were there to the end.
type Outcome = (Vec<Vec<u32>>, Vec<StateCopy>);

/// Greedy and sampled sequences say the same with their tokens in the next pass before the host knows them, and leave the
/// same states, bit for bit. `by_itself`: the device must choose by itself, or must not.
pub fn check<S: Subject>(subject: &S, by_itself: bool) {
    for temperature in [0.0, 0.9] {
        let label = format!("{}, temperature {temperature}", subject.label());
        let expected = Play::new(subject, temperature, label.clone()).through_the_host();
        let mut ahead = Play::new(subject, temperature, label.clone());
        let found = ahead.in_flight();
        assert!(ahead.queued.iter().all(|&queued| queued == by_itself), "{label}: who chose, step by step: {:?}", ahead.queued);
        assert_eq!(found.0, expected.0, "{label}: tokens");
        assert!(found.1 == expected.1, "{label}: states differ");
        println!("{label}: {} passes agree", ahead.queued.len());
    }
}

/// Queued choices that the host reads late, in any order, or never, disturb no other.
pub fn check_late<S: Subject>(subject: &S) {
    let expected = {
        let mut alone = Play::new(subject, 0.0, subject.label());
        let mut tokens = vec![alone.prompt(0)];
        for step in 1..=7 {
            alone.pass(&[0], &tokens[step - 1..], None);
            tokens.extend(alone.select(&[0], step));
        }
        tokens
    };
    let mut play = Play::new(subject, 0.0, subject.label());
    let first = play.prompt(0);
    let mut choices = Vec::new();
    for step in 1..=6 {
        play.pass(&[0], &[if step == 1 { first } else { NEXT }], None);
        choices.push(play.choose(&[0], step));
    }
    choices.remove(1);
    for (step, at) in [(6, 4), (1, 0), (5, 3)] {
        let chosen = play.runner.chosen(choices[at].clone()).expect("a choice that was queued");
        assert_eq!(chosen, [expected[step]], "{}: the token after step {step}", play.label);
    }
    if let Choice::Queued(ticket) = choices[0] {
        let error = play.runner.device.chosen(ticket).expect_err("a ticket counts once").to_string();
        assert!(error.contains("expected one of the last"), "{error}");
    }
    // Through the host again, as if nothing had been.
    let fourth = play.runner.chosen(choices[2].clone()).expect("a choice that was queued");
    assert_eq!(fourth, [expected[4]], "{}", play.label);
    play.pass(&[0], &[expected[6]], None);
    assert_eq!(play.select(&[0], 7), [expected[7]], "{}", play.label);
}

/// A device with the sequences on it.
struct Play<D: Device> {
    runner: Runner<D>,
    label: String,
    temperature: f32,
    sequences: Vec<Sequence>,
    said: Vec<Vec<u32>>,
    /// Of every queued choice, whether the device made it.
    queued: Vec<bool>,
}

impl<D: Device> Play<D> {
    fn new<S: Subject<Device = D>>(subject: &S, temperature: f32, label: String) -> Self {
        let mut runner = open(subject, "base");
        let pages: [&[u32]; 4] = [&[5], &[2, 9], &[7], &[11]];
        let sequences = pages.iter().enumerate().map(|(at, pages)| Sequence::start(&mut runner, 3 - at as u32, pages)).collect();
        Play { runner, label, temperature, sequences, said: vec![Vec::new(); 4], queued: Vec::new() }
    }

    /// The token after `step` steps: the draw depends on sequence and step alone.
    fn selections(&self, who: &[usize], step: usize) -> Vec<Selection> {
        let draw = |at: usize| Rng::new((at * 1000 + step) as u64).uniform() as f32;
        let one = |&at: &usize| Selection {
            // One of them is always greedy, so that rules differ in a batch.
            temperature: if at == 2 { 0.0 } else { self.temperature },
            top_k: if at == 2 { 0 } else { 20 },
            top_p: 0.95,
            draw: draw(at),
            ..Selection::greedy()
        };
        who.iter().map(one).collect()
    }

    fn select(&mut self, who: &[usize], step: usize) -> Vec<u32> {
        let selections = self.selections(who, step);
        self.runner.device.select(&selections).unwrap_or_else(|error| panic!("{}: {error}", self.label))
    }

    fn choose(&mut self, who: &[usize], step: usize) -> Choice {
        let selections = self.selections(who, step);
        let choice = self.runner.queue_select(&selections).unwrap_or_else(|error| panic!("{}: {error}", self.label));
        self.queued.push(matches!(choice, Choice::Queued(_)));
        choice
    }

    /// A row for each of these sequences; a prompt may come with them.
    fn pass(&mut self, who: &[usize], tokens: &[u32], prompt: Option<(usize, &[u32])>) {
        let rows = who.iter().zip(tokens.chunks(1)).map(|(&at, token)| self.sequences[at].span(token, Logits::Last));
        let prompt_span = prompt.map(|(at, tokens)| self.sequences[at].span(tokens, Logits::Last));
        let spans: Vec<_> = rows.chain(prompt_span).collect();
        self.runner.run(&Batch { spans: &spans }).unwrap_or_else(|error| panic!("{}: {error}", self.label));
        who.iter().for_each(|&at| self.sequences[at].position += 1);
        if let Some((at, tokens)) = prompt {
            self.sequences[at].position += tokens.len();
        }
    }

    fn tokens_of(&self, at: usize) -> Vec<u32> {
        let mut rng = Rng::new(40 + at as u64);
        (0..PROMPTS[at]).map(|_| rng.below(self.runner.config.vocab) as u32).collect()
    }

    /// Takes in a prompt; its first token.
    fn prompt(&mut self, at: usize) -> u32 {
        let tokens = self.tokens_of(at);
        self.pass(&[], &[], Some((at, &tokens)));
        self.select(&[at], 0)[0]
    }

    fn start(&mut self) {
        for at in 0..3 {
            let token = self.prompt(at);
            self.said[at].push(token);
        }
    }

    /// Every token to the host before the next pass.
    fn through_the_host(mut self) -> Outcome {
        self.start();
        for (who, steps) in PHASES {
            for _ in 0..steps {
                let (known, newcomer): (Vec<usize>, Vec<usize>) = who.iter().partition(|&&at| !self.said[at].is_empty());
                let inputs: Vec<u32> = known.iter().map(|&at| *self.said[at].last().expect("said something")).collect();
                let prompt = newcomer.first().map(|&at| (at, self.tokens_of(at)));
                self.pass(&known, &inputs, prompt.as_ref().map(|(at, tokens)| (*at, &tokens[..])));
                let step = self.said.iter().map(Vec::len).max().unwrap_or(0);
                let chosen = self.select(who, step);
                who.iter().zip(chosen).for_each(|(&at, token)| self.said[at].push(token));
            }
        }
        self.outcome()
    }

    /// One pass in front of what the host knows.
    fn in_flight(&mut self) -> Outcome {
        self.start();
        let mut steps_done = self.said[0].len();
        let mut flying: VecDeque<(&[usize], Choice)> = VecDeque::new();
        for (who, steps) in PHASES {
            for _ in 0..steps {
                // A row's token is in its place if it was chosen in the same row; else the host must know it.
                let (known, newcomer): (Vec<usize>, Vec<usize>) = who.iter().partition(|&&at| self.sequences[at].position > 0);
                let last = flying.back().map_or(&[][..], |(rows, _)| *rows);
                if !last.starts_with(&known) {
                    while let Some(landed) = flying.pop_front() {
                        self.land(landed);
                    }
                }
                let inputs: Vec<u32> = match flying.is_empty() {
                    true => known.iter().map(|&at| *self.said[at].last().expect("said something")).collect(),
                    false => vec![NEXT; known.len()],
                };
                let prompt = newcomer.first().map(|&at| (at, self.tokens_of(at)));
                self.pass(&known, &inputs, prompt.as_ref().map(|(at, tokens)| (*at, &tokens[..])));
                flying.push_back((who, self.choose(who, steps_done)));
                steps_done += 1;
                if flying.len() == 2 {
                    let landed = flying.pop_front().expect("two of them");
                    self.land(landed);
                }
            }
        }
        while let Some(landed) = flying.pop_front() {
            self.land(landed);
        }
        self.outcome()
    }

    fn land(&mut self, (who, choice): (&[usize], Choice)) {
        let chosen = self.runner.chosen(choice).unwrap_or_else(|error| panic!("{}: {error}", self.label));
        who.iter().zip(chosen).for_each(|(&at, token)| self.said[at].push(token));
    }

    fn outcome(&mut self) -> Outcome {
        let states = PHASES[3].0.iter().map(|&at| self.runner.device.state_save(self.sequences[at].slot)).collect();
        (std::mem::take(&mut self.said), states)
    }
}
