//! Two passes in flight over the fake device: answers, states and faults are those of one pass after the other.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fake::{Answer, FakeDevice, Probe, Random, continuation, greedy, hear};
use lily_engine::{Constraint, Engine, Event, Finish, Options, Request, Sampling};
use lily_model::Capacity;

const CAPACITY: Capacity = Capacity { slots: 4, pages: 40, rows: 128, logit_rows: 8 };

fn options() -> Options {
    Options { chunk: 64, chunk_shared: 16, cache_bytes: 1 << 20, ..Options::default() }
}

fn start(capacity: Capacity, options: Options) -> (Engine, Arc<Probe>) {
    let probe = Probe::by_itself();
    (Engine::start(FakeDevice::runner(capacity, probe.clone()), options), probe)
}

fn answer(engine: &Engine, request: Request) -> Answer {
    hear(engine.submit(request).unwrap())
}

/// A greedy request that the `at`th token of its answer stops, and the answer. No token before is that one.
fn stopped(prompt: Vec<u32>, at: usize) -> Option<(Request, Vec<u32>)> {
    let said = continuation(&prompt, at + 1);
    let stop = said[at];
    let request = Request { stop_tokens: Arc::new([stop]), ..greedy(prompt, 1000) };
    (!said[..at].contains(&stop)).then_some((request, said))
}

#[test]
fn answers_are_those_of_the_model_and_nothing_is_fed_in_vain() {
    let (engine, probe) = start(CAPACITY, options());
    let mut random = Random(1);
    for length in [1, 2, 64, 65, 255, 256, 700] {
        for count in [1, 2, 3, 20] {
            let prompt = random.tokens(length);
            let (rows, ahead) = (probe.rows(), probe.rows_ahead.load(Ordering::SeqCst));
            let found = answer(&engine, greedy(prompt.clone(), count));
            assert_eq!(found.tokens, continuation(&prompt, count), "prompt of {length} tokens");
            assert_eq!(found.end.unwrap().0, Finish::Length);
            // The last token is known to be the last: no pass takes it in. All the others were ahead of the host.
            assert_eq!(probe.rows() - rows, length + count - 1);
            assert_eq!(probe.rows_ahead.load(Ordering::SeqCst) - ahead, count - 1);
        }
    }
}

#[test]
fn a_stop_in_flight_leaves_a_state_that_has_taken_it_in() {
    let mut random = Random(2);
    let mut stops = 0;
    for at in 0..30 {
        let Some((request, said)) = stopped(random.tokens(40), at) else { continue };
        stops += 1;
        let prompt = request.prompt.clone();
        let (engine, probe) = start(CAPACITY, options());
        let found = answer(&engine, request);
        assert_eq!((&found.tokens, found.end.unwrap().0), (&said, Finish::Stop));
        assert_eq!(probe.rows(), 40 + said.len(), "the stop token was on its way");

        // The next turn of the conversation goes on after the stop token, and says what a cold start says.
        let next = [&prompt[..], &said, &random.tokens(9)].concat();
        let warm = answer(&engine, greedy(next.clone(), 25));
        assert_eq!(warm.cached, 40 + said.len());
        assert_eq!(warm.tokens, continuation(&next, 25));

        // Another branch from before the stop token finds nothing of it.
        let branch = [&prompt[..], &said[..at], &random.tokens(30)].concat();
        assert_eq!(answer(&engine, greedy(branch.clone(), 25)).tokens, continuation(&branch, 25));
    }
    assert!(stops > 5, "{stops} answers had a token to stop at");
}

#[test]
fn random_companies_say_what_each_says_alone() {
    let mut ahead = 0;
    for seed in 0..12 {
        let mut random = Random(100 + seed);
        let capacity = Capacity {
            slots: 1 + random.below(6),
            pages: 8 + random.below(20),
            rows: 20 + random.below(100),
            logit_rows: 1 + random.below(8),
        };
        let cache_bytes = [0, 80_000, 800_000][random.below(3)];
        let (engine, probe) = start(capacity, Options { chunk: 1 + random.below(90), cache_bytes, ..options() });
        let stem = random.tokens(500);
        std::thread::scope(|scope| {
            for client in 0..[1, 3, 8][random.below(3)] {
                let (engine, stem, mut random) = (engine.clone(), &stem, Random(seed * 1000 + client));
                scope.spawn(move || (0..8).for_each(|_| converse(&engine, stem, &mut random)));
            }
        });
        while engine.stats().waiting + engine.stats().running() > 0 {
            std::thread::yield_now();
        }
        ahead += probe.rows_ahead.load(Ordering::SeqCst);
        let stats = engine.stats();
        assert_eq!((stats.slots_used, stats.pages_used, stats.failed), (0, 0, 0), "{stats:?}");
    }
    assert!(ahead > 1000, "{ahead} rows were ahead of the host");
}

/// A conversation of two turns: answers stop, run out or are left early.
fn converse(engine: &Engine, stem: &[u32], random: &mut Random) {
    let mut prompt = stem[..random.below(stem.len())].to_vec();
    let tail = 1 + random.below(30);
    prompt.extend(random.tokens(tail));
    for _ in 0..2 {
        let at = random.below(60);
        let (request, said) = match stopped(prompt.clone(), at) {
            Some(stopped) if random.below(2) == 0 => stopped,
            _ => (greedy(prompt.clone(), at + 1), continuation(&prompt, at + 1)),
        };
        let mut generation = engine.submit(Request { keep_at: vec![prompt.len() / 2], ..request }).unwrap();
        if random.below(4) == 0 {
            for _ in 0..random.below(at + 3) {
                if generation.next_blocking().is_none() {
                    return;
                }
            }
            return;
        }
        assert_eq!(hear(generation).tokens, said);
        prompt = [&prompt[..], &said, &random.tokens(5)].concat();
    }
}

#[test]
fn draws_are_the_same_ahead_and_behind() {
    let request = |seed: u64| {
        let sampling = Sampling { temperature: 0.9, top_k: 12, seed: Some(seed), logit_bias: vec![(3, 0.5)], ..Sampling::default() };
        Request { sampling, ..greedy(Random(seed).tokens(30), 60) }
    };
    let (engine, probe) = start(CAPACITY, options());
    let together: Vec<_> = (0..4).map(|seed| engine.submit(request(seed)).unwrap()).collect();
    let together: Vec<Vec<u32>> = together.into_iter().map(|generation| hear(generation).tokens).collect();
    assert!(probe.rows_ahead.load(Ordering::SeqCst) > 0);
    probe.by_itself.store(false, Ordering::SeqCst);
    for (seed, tokens) in together.iter().enumerate() {
        assert_eq!(&answer(&engine, request(seed as u64)).tokens, tokens);
    }
}

/// Allows everything and counts what it is told.
struct Everything;

impl Constraint for Everything {
    fn allowed(&mut self) -> Option<Vec<u32>> {
        None
    }
    fn accept(&mut self, _: u32) {}
}

#[test]
fn whoever_needs_to_know_the_last_token_waits_for_it() {
    let penalty = |sampling: Sampling| Request { sampling, ..greedy(vec![5, 6], 30) };
    let needy = [
        Request { logprobs: Some(1), ..greedy(vec![5, 6], 30) },
        Request { constraint: Some(Box::new(Everything)), ..greedy(vec![5, 6], 30) },
        penalty(Sampling { presence_penalty: 0.5, ..Sampling::default() }),
        penalty(Sampling { repetition_penalty: 1.2, ..Sampling::default() }),
    ];
    for request in needy {
        let (engine, probe) = start(CAPACITY, options());
        let plain = matches!((&request.constraint, request.logprobs), (Some(_), _) | (_, Some(_)));
        let found = answer(&engine, request);
        assert_eq!((found.tokens.len(), probe.rows_ahead.load(Ordering::SeqCst)), (30, 0));
        if plain {
            assert_eq!(found.tokens, continuation(&[5, 6], 30));
        }
    }
}

#[test]
fn a_pass_that_fails_in_flight_fails_those_in_it_and_nobody_else() {
    let mut random = Random(8);
    let prompt = random.tokens(40);
    let said = continuation(&prompt, 60);
    // One pass for the prompt, one for each token: which of them fails says how far the answer comes.
    for failing in [0, 1, 2, 17] {
        let (engine, probe) = start(CAPACITY, options());
        probe.fail_in_flight.store(failing, Ordering::SeqCst);
        let found = answer(&engine, greedy(prompt.clone(), 60));
        assert_eq!(found.end.unwrap_err(), "device: failed in flight");
        assert_eq!(found.tokens, said[..failing]);
        // Nothing of it is kept; whoever comes next is answered.
        assert_eq!(engine.stats().pages_used, 0);
        let again = answer(&engine, greedy(prompt.clone(), 60));
        assert_eq!((&again.tokens, engine.stats().failed), (&said, 1));
    }
}

#[test]
fn no_state_is_kept_of_a_prompt_whose_pass_failed() {
    let prompt = Random(10).tokens(200);
    let request = || Request { keep_at: vec![50, 100, 150], ..greedy(prompt.clone(), 20) };
    // Chunks end where a state is kept, and at multiples of 64: after 50, 64, 100, 128, 150 and 192 tokens.
    for failing in 0..7 {
        let (engine, probe) = start(CAPACITY, options());
        probe.fail_in_flight.store(failing, Ordering::SeqCst);
        let failed = answer(&engine, request());
        assert_eq!(failed.end.err().as_deref(), Some("device: failed in flight"), "pass {failing}");
        let again = answer(&engine, request());
        assert_eq!((again.tokens, engine.stats().failed), (continuation(&prompt, 20), 1), "pass {failing}");
    }
    // Those that leave do not keep it either.
    let (engine, probe) = start(CAPACITY, options());
    probe.fail_in_flight.store(1, Ordering::SeqCst);
    probe.allow(1);
    let left = engine.submit(request()).unwrap();
    while probe.passes.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    drop(left);
    probe.go_on();
    assert_eq!(answer(&engine, request()).tokens, continuation(&prompt, 20));
}

#[test]
fn a_prompt_beside_a_row_that_fails_fails_too() {
    let (engine, probe) = start(CAPACITY, options());
    let (short, long) = (Random(11).tokens(5), Random(12).tokens(300));
    probe.hold();
    let decodes = engine.submit(greedy(short, 500)).unwrap();
    let prefills = engine.submit(greedy(long.clone(), 5)).unwrap();
    probe.fail_in_flight.store(3, Ordering::SeqCst);
    probe.go_on();
    for generation in [decodes, prefills] {
        assert_eq!(hear(generation).end.unwrap_err(), "device: failed in flight");
    }
    assert_eq!(answer(&engine, greedy(long.clone(), 5)).tokens, continuation(&long, 5));
}

#[test]
fn who_has_ended_does_not_mind_that_the_pass_after_failed() {
    let mut random = Random(9);
    let (request, said) = (0..).find_map(|_| stopped(random.tokens(40), 20)).expect("some answer has such a token");
    let other = random.tokens(40);
    let (engine, probe) = start(CAPACITY, options());
    probe.hold();
    let prompt = request.prompt.clone();
    let stops = engine.submit(request).unwrap();
    let goes_on = engine.submit(greedy(other.clone(), 500)).unwrap();
    // The second prompt comes a chunk of 16 at a time beside the first's tokens: the first stops in the pass that chooses
    // its token 20, counted from 0; the pass after is the one that fails.
    probe.fail_in_flight.store(21, Ordering::SeqCst);
    probe.go_on();
    let (stopped, failed) = (hear(stops), hear(goes_on));
    assert_eq!((stopped.tokens, stopped.end.unwrap().0), (said.clone(), Finish::Stop));
    assert_eq!(failed.end.unwrap_err(), "device: failed in flight");
    assert!(!failed.tokens.is_empty() && failed.tokens == continuation(&other, failed.tokens.len()));
    let next = [&prompt[..], &said, &[1, 2]].concat();
    let after = answer(&engine, greedy(next.clone(), 10));
    assert_eq!((after.tokens, after.cached), (continuation(&next, 10), 0));
}

#[test]
fn a_newcomer_and_a_leaver_are_seen_to_at_once() {
    let (engine, probe) = start(CAPACITY, options());
    let (long, short) = (Random(3).tokens(10), Random(4).tokens(11));
    probe.allow(5);
    let mut first = engine.submit(greedy(long.clone(), 10_000)).unwrap();
    while !matches!(first.next_blocking(), Some(Event::Token { .. })) {}
    let second = engine.submit(greedy(short.clone(), 5)).unwrap();
    probe.allow(100);
    assert_eq!(hear(second).tokens, continuation(&short, 5));
    let passes = |probe: &Probe| probe.passes.lock().unwrap().clone();
    let begins = passes(&probe).iter().position(|spans| spans.iter().any(|span| span.0 == 11)).expect("the second's prompt");
    assert!(begins <= 7, "the second began in pass {begins}");

    drop(first);
    probe.allow(200);
    while engine.stats().slots_used > 0 {
        std::thread::yield_now();
    }
    assert_eq!(engine.stats().cancelled, 1);
    assert!(passes(&probe).len() <= 102, "{} passes", passes(&probe).len());
}

#[test]
fn who_leaves_the_queue_is_not_kept_until_an_answer_ends() {
    let (engine, probe) = start(Capacity { slots: 1, ..CAPACITY }, Options { queue_max: 1, ..options() });
    let passes = |probe: &Probe| probe.passes.lock().unwrap().len();
    let pass = |count: usize| {
        probe.allow(count);
        while passes(&probe) < count {
            std::thread::yield_now();
        }
    };
    let mut running = engine.submit(greedy(Random(5).tokens(10), 10_000)).unwrap();
    pass(20);
    let waits = engine.submit(greedy(Random(6).tokens(10), 5)).unwrap();
    pass(25);
    assert_eq!((engine.stats().waiting, engine.stats().slots_used), (1, 1));
    drop(waits);
    pass(30);
    let stats = engine.stats();
    assert_eq!((stats.waiting, stats.cancelled, stats.slots_used), (0, 1, 1), "the flight has gone on meanwhile");
    assert!(probe.rows_ahead.load(Ordering::SeqCst) > 20);

    // Its place is free for another.
    let next = Random(7).tokens(10);
    let waits = engine.submit(greedy(next.clone(), 5)).unwrap();
    while !matches!(running.next_blocking(), Some(Event::Token { .. })) {}
    drop(running);
    probe.go_on();
    assert_eq!(hear(waits).tokens, continuation(&next, 5));
}

#[test]
fn closing_lands_what_is_in_flight() {
    for finish in [true, false] {
        let (engine, _) = start(CAPACITY, options());
        let prompt = Random(6).tokens(10);
        let mut generation = engine.submit(greedy(prompt.clone(), 200)).unwrap();
        while !matches!(generation.next_blocking(), Some(Event::Token { .. })) {}
        let rest = std::thread::spawn(move || std::iter::from_fn(|| generation.next_blocking()).last());
        engine.shutdown(finish);
        match rest.join().unwrap() {
            // It may have come to its end before.
            Some(Event::Finished { usage, .. }) => assert_eq!(usage.generated_tokens, 200),
            Some(Event::Failed(error)) => assert!(!finish && error.to_string() == "the engine is shutting down"),
            other => panic!("{other:?}"),
        }
    }
}
