//! The scheduler over the fake device: whatever else goes on, every answer is that of a solo run.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{Answer, FakeDevice, Probe, Random, continuation, greedy, hear};
use lily_engine::{Engine, EngineError, Event, Finish, Generation, Options, Request, Sampling, Stats};
use lily_model::Capacity;

const CAPACITY: Capacity = Capacity { slots: 4, pages: 40, rows: 128, logit_rows: 8 };

fn options() -> Options {
    Options { chunk: 64, chunk_shared: 16, cache_bytes: 1 << 20, ..Options::default() }
}

fn start(capacity: Capacity, options: Options) -> (Engine, Arc<Probe>) {
    let probe = Arc::new(Probe::default());
    (Engine::start(FakeDevice::runner(capacity, probe.clone()), options), probe)
}

fn answer(engine: &Engine, request: Request) -> Answer {
    hear(engine.submit(request).unwrap())
}

/// Waits until the statistics say so: dropped requests end when the engine's thread gets to them.
fn wait_for(engine: &Engine, what: impl Fn(&Stats) -> bool) {
    while !what(&engine.stats()) {
        std::thread::yield_now();
    }
}

fn is_empty(stats: &Stats) -> bool {
    (stats.waiting, stats.running(), stats.slots_used, stats.pages_used) == (0, 0, 0, 0)
}

/// Reads on to the first token.
fn first_token(generation: &mut Generation) -> u32 {
    loop {
        match generation.next_blocking() {
            Some(Event::Token { id, .. }) => return id,
            Some(Event::Finished { .. } | Event::Failed(_)) | None => panic!("ended before its first token"),
            Some(_) => {}
        }
    }
}

/// The tokens that a generation still has to say.
fn rest(mut generation: Generation) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match generation.next_blocking() {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(Event::Finished { .. }) => return tokens,
            other => panic!("{other:?} amid an answer"),
        }
    }
}

#[test]
fn answers_are_those_of_the_model() {
    let (engine, _) = start(CAPACITY, options());
    let mut random = Random(1);
    for length in [1, 2, 63, 64, 65, 255, 256, 257, 700] {
        let prompt = random.tokens(length);
        let found = answer(&engine, greedy(prompt.clone(), 20));
        assert_eq!(found.tokens, continuation(&prompt, 20), "prompt of {length} tokens");
        assert_eq!(found.end.unwrap().0, Finish::Length);
    }
    assert!(is_empty(&engine.stats()));
    assert_eq!(engine.device_name(), "fake");
}

#[test]
fn random_schedules_equal_solo_runs() {
    // What the schedules must have met, all together.
    let (mut hits, mut preempted, mut page_copies, mut cancelled) = (0, 0, 0, 0);
    for seed in 0..12 {
        let mut random = Random(seed);
        let capacity = Capacity {
            slots: 1 + random.below(6),
            pages: 5 + random.below(20),
            rows: 20 + random.below(100),
            logit_rows: 1 + random.below(8),
        };
        let options = Options {
            chunk: 1 + random.below(90),
            chunk_shared: 1 + random.below(40),
            cache_bytes: [0, 80_000, 800_000][random.below(3)],
            keep_every: 100 + random.below(400),
            ..options()
        };
        let (engine, probe) = start(capacity, options);
        let clients = [1, 3, 16, 64][random.below(4)];
        let stem = random.tokens(600);
        std::thread::scope(|scope| {
            for client in 0..clients {
                let (engine, stem) = (engine.clone(), &stem);
                let mut random = Random(seed * 1000 + client);
                scope.spawn(move || client_life(&engine, stem, &mut random));
            }
        });
        wait_for(&engine, is_empty);
        let stats = engine.stats();
        assert_eq!(stats.submitted, stats.finished_stop + stats.finished_length + stats.cancelled, "seed {seed}: {stats:?}");
        hits += stats.cache.hits;
        preempted += stats.preempted;
        cancelled += stats.cancelled;
        page_copies += probe.page_copies.load(Ordering::SeqCst);
    }
    assert!(hits > 0 && preempted > 0 && page_copies > 0 && cancelled > 0, "{hits} {preempted} {page_copies} {cancelled}");
}

/// Requests with prefixes of a common stem; some are left early, at any stage.
fn client_life(engine: &Engine, stem: &[u32], random: &mut Random) {
    for _ in 0..6 {
        let mut prompt = stem[..random.below(stem.len())].to_vec();
        let tail = 1 + random.below(40);
        prompt.extend(random.tokens(tail));
        let most = [30, 400][random.below(2)];
        let count = 1 + random.below(most);
        let mut request = greedy(prompt.clone(), count);
        request.keep_at = (0..random.below(4)).map(|_| random.below(prompt.len() + 2)).collect();
        let generation = loop {
            match engine.submit(clone_of(&request)) {
                Ok(generation) => break generation,
                Err(EngineError::QueueFull { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        if random.below(3) == 0 {
            leave_early(generation, random.below(12));
        } else {
            assert_eq!(hear(generation).tokens, continuation(&prompt, count));
        }
    }
}

fn clone_of(request: &Request) -> Request {
    Request { keep_at: request.keep_at.clone(), ..greedy(request.prompt.clone(), request.max_tokens.unwrap()) }
}

fn leave_early(mut generation: Generation, events: usize) {
    for _ in 0..events {
        if generation.next_blocking().is_none() {
            return;
        }
    }
}

#[test]
fn a_decoder_gets_tokens_while_a_long_prompt_prefills() {
    let (engine, probe) = start(CAPACITY, options());
    let mut random = Random(3);
    let (short, long) = (random.tokens(5), random.tokens(3000));
    probe.hold();
    let decoding = engine.submit(greedy(short.clone(), 400)).unwrap();
    let prefilling = engine.submit(greedy(long.clone(), 3)).unwrap();
    probe.go_on();
    assert_eq!(hear(prefilling).tokens, continuation(&long, 3));
    assert_eq!(hear(decoding).tokens, continuation(&short, 400));

    // While both were there, every pass served both, and a chunk was at most `chunk_shared` long.
    let passes = probe.passes.lock().unwrap();
    let mixed = passes.iter().filter(|spans| spans.len() == 2 && spans[0].0 == 1 && spans[1].0 > 1).collect::<Vec<_>>();
    assert!(mixed.len() >= 3000 / 16, "{} mixed passes", mixed.len());
    assert!(mixed.iter().all(|spans| spans[1].0 <= 16));
}

#[test]
fn a_slow_device_takes_smaller_chunks_while_others_decode() {
    for (wait_shared, largest) in [(Duration::ZERO, 32), (Duration::MAX, 64)] {
        let (engine, probe) = start(CAPACITY, Options { chunk: 64, chunk_shared: 64, wait_shared, ..options() });
        // The first prompt, alone, shows how fast the device is.
        answer(&engine, greedy(Random(90).tokens(300), 1));
        let long = Random(91).tokens(2000);
        probe.hold();
        let decoding = engine.submit(greedy(vec![1, 2], 300)).unwrap();
        let prefilling = engine.submit(greedy(long.clone(), 3)).unwrap();
        probe.go_on();
        assert_eq!(hear(prefilling).tokens, continuation(&long, 3));
        assert_eq!(hear(decoding).tokens, continuation(&[1, 2], 300));
        let passes = probe.passes.lock().unwrap();
        let shared = passes.iter().filter(|spans| spans.len() == 2 && spans[1].0 > 1).map(|spans| spans[1].0);
        assert_eq!(shared.max(), Some(largest));
    }
}

#[test]
fn several_prompts_advance_in_turn() {
    let (engine, probe) = start(CAPACITY, options());
    let mut random = Random(4);
    let prompts = [random.tokens(2000), random.tokens(200)];
    probe.hold();
    let generations: Vec<_> = prompts.iter().map(|prompt| engine.submit(greedy(prompt.clone(), 1)).unwrap()).collect();
    probe.go_on();
    let answers: Vec<_> = generations.into_iter().map(hear).collect();
    for (prompt, found) in prompts.iter().zip(&answers) {
        assert_eq!(found.tokens, continuation(prompt, 1));
    }
    // The short prompt's last chunk came long before the long one's.
    let passes = probe.passes.lock().unwrap();
    let at = |length: usize| passes.iter().position(|spans| spans.iter().any(|span| span.2 && span.0 + span.1 == length)).unwrap();
    assert!(at(200) < at(2000) / 2, "{} {}", at(200), at(2000));
}

#[test]
fn short_prompts_pass_a_long_one_a_few_times() {
    let (engine, probe) = start(Capacity { slots: 1, ..CAPACITY }, options());
    probe.hold();
    let blocker = engine.submit(greedy(vec![9; 4], 3)).unwrap();
    let long = engine.submit(greedy(Random(95).tokens(800), 3)).unwrap();
    // Each has another length, by which its first pass is known.
    let short: Vec<_> = (1..=7).map(|length| engine.submit(greedy(vec![length as u32; 10 + length], 3)).unwrap()).collect();
    probe.go_on();
    for (at, generation) in short.into_iter().enumerate() {
        assert_eq!(hear(generation).tokens, continuation(&vec![at as u32 + 1; at + 11], 3));
    }
    hear(long);
    hear(blocker);
    let passes = probe.passes.lock().unwrap();
    let starts: Vec<usize> = passes.iter().flatten().filter(|span| span.1 == 0).map(|span| span.0).collect();
    assert_eq!(starts, [4, 11, 12, 13, 14, 64, 15, 16, 17]);
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let (engine, probe) = start(CAPACITY, Options { queue_max: 3, ..options() });
    probe.hold();
    let mut accepted: Vec<_> = (0..7).map(|at| engine.submit(greedy(vec![at, 1, 2], 4)).unwrap()).collect();
    let refused = engine.submit(greedy(vec![9], 4)).map(|_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "the queue is full: 3 requests are waiting");
    drop(accepted.pop());
    probe.go_on();
    for (at, generation) in accepted.into_iter().enumerate() {
        assert_eq!(hear(generation).tokens, continuation(&[at as u32, 1, 2], 4));
    }
    wait_for(&engine, is_empty);
    assert_eq!(answer(&engine, greedy(vec![9], 4)).tokens, continuation(&[9], 4));
    assert_eq!(engine.stats().cancelled, 1);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let (engine, _) = start(CAPACITY, Options { context: 300, ..options() });
    let refusal = |request: Request| engine.submit(request).map(|_| ()).unwrap_err().to_string();
    assert_eq!(refusal(greedy(vec![], 1)), "the prompt has no tokens");
    assert_eq!(refusal(greedy(vec![1; 301], 1)), "the prompt has 301 tokens; the context holds 300");
    assert_eq!(refusal(greedy(vec![1, 97], 1)), "token 97 in the prompt; the vocabulary has 97");
    let sampling = Sampling { top_p: -1.0, ..Sampling::default() };
    assert_eq!(refusal(Request { sampling, ..greedy(vec![1], 1) }), "top_p: expected a number from 0 to 1, found -1");
    assert_eq!(engine.stats().submitted, 0);

    // The context is at most what the pages hold.
    let (engine, _) = start(Capacity { pages: 2, ..CAPACITY }, options());
    assert_eq!(engine.context(), 512);
}

#[test]
fn generation_ends_at_stop_tokens_max_tokens_and_the_context() {
    let (engine, _) = start(CAPACITY, Options { context: 300, ..options() });
    let prompt = Random(5).tokens(290);
    let expected = continuation(&prompt, 10);

    let clamped = answer(&engine, greedy(prompt.clone(), 8192));
    assert_eq!((clamped.tokens, clamped.end.unwrap().0), (expected.clone(), Finish::Length));
    let unlimited = answer(&engine, Request { max_tokens: None, ..greedy(prompt.clone(), 0) });
    assert_eq!(unlimited.tokens, expected);

    let stop = expected[4];
    let first = expected.iter().position(|&token| token == stop).unwrap();
    let stopped = answer(&engine, Request { stop_tokens: Arc::new([stop]), ..greedy(prompt.clone(), 10) });
    assert_eq!((&stopped.tokens[..], stopped.end.unwrap().0), (&expected[..=first], Finish::Stop));

    let none = answer(&engine, greedy(prompt, 0));
    assert_eq!((none.tokens.len(), none.end.unwrap().0), (0, Finish::Length));
    let full = answer(&engine, greedy(vec![3; 300], 5));
    assert_eq!((full.tokens.len(), full.end.unwrap().0), (0, Finish::Length));
}

#[test]
fn a_short_prompt_with_a_huge_limit_is_admitted_beside_others() {
    let (engine, probe) = start(Capacity { pages: 8, ..CAPACITY }, options());
    probe.hold();
    let prompts: Vec<Vec<u32>> = (0..3).map(|at| Random(60 + at).tokens(30)).collect();
    let mut generations: Vec<_> = prompts.iter().map(|prompt| engine.submit(greedy(prompt.clone(), 8192)).unwrap()).collect();
    probe.go_on();
    for (prompt, generation) in prompts.iter().zip(&mut generations) {
        assert_eq!(first_token(generation), continuation(prompt, 1)[0]);
    }
    assert!(probe.passes.lock().unwrap().iter().any(|spans| spans.len() == 3));
    engine.shutdown(false);
}

#[test]
fn pages_run_out_and_every_answer_is_still_right() {
    // Four sequences of up to 3 pages each over 5 pages: they must take turns.
    for cache_bytes in [0, 1 << 20] {
        let (engine, _) = start(Capacity { pages: 5, ..CAPACITY }, Options { cache_bytes, ..options() });
        let prompts: Vec<Vec<u32>> = (0..4).map(|at| Random(70 + at).tokens(200)).collect();
        let generations: Vec<_> = prompts.iter().map(|prompt| engine.submit(greedy(prompt.clone(), 500)).unwrap()).collect();
        for (prompt, generation) in prompts.iter().zip(generations) {
            assert_eq!(hear(generation).tokens, continuation(prompt, 500));
        }
        let stats = engine.stats();
        assert!(stats.preempted > 0, "{stats:?}");
        assert!(is_empty(&stats));
    }
}

#[test]
fn a_preempted_sequence_comes_back_before_those_that_came_later() {
    let (engine, probe) = start(Capacity { slots: 2, pages: 3, ..CAPACITY }, Options { cache_bytes: 0, ..options() });
    probe.hold();
    let prompts = [200, 200, 90].map(|length| Random(75 + length as u64).tokens(length));
    let limits = [500, 200, 5];
    let generations = [0, 1, 2].map(|at| engine.submit(greedy(prompts[at].clone(), limits[at])).unwrap());
    probe.go_on();
    for (at, generation) in generations.into_iter().enumerate() {
        assert_eq!(hear(generation).tokens, continuation(&prompts[at], limits[at]), "request {at}");
    }
    // The second gave up its page; when it began again, the third, which would have had room, still waited.
    assert!(engine.stats().preempted >= 1);
    let passes = probe.passes.lock().unwrap();
    let spans: Vec<(usize, usize)> = passes.iter().flatten().map(|span| (span.0, span.1)).collect();
    let begins: Vec<usize> = (0..spans.len()).filter(|&at| spans[at].1 == 0).collect();
    let third = spans.iter().position(|&span| span == (26, 64)).expect("the end of its prompt of 90 tokens");
    assert!(begins.len() >= 4 && begins.iter().all(|&at| at < third), "{spans:?}");
}

#[test]
fn sampled_answers_repeat_across_preemption_and_company() {
    let request = |at: u64| {
        let sampling = Sampling {
            temperature: 0.8,
            top_k: 20,
            top_p: 0.9,
            presence_penalty: 0.5,
            repetition_penalty: 1.1,
            seed: Some(at),
            ..Sampling::default()
        };
        Request { sampling, ..greedy(Random(80 + at).tokens(200), 400) }
    };
    let (roomy, _) = start(CAPACITY, options());
    let solo: Vec<_> = (0..4).map(|at| answer(&roomy, request(at)).tokens).collect();
    let (tight, _) = start(Capacity { pages: 5, ..CAPACITY }, options());
    let generations: Vec<_> = (0..4).map(|at| tight.submit(request(at)).unwrap()).collect();
    let together: Vec<_> = generations.into_iter().map(|generation| hear(generation).tokens).collect();
    assert!(tight.stats().preempted > 0);
    assert_eq!(solo, together);
    let unseeded = |_| answer(&roomy, Request { sampling: Sampling { seed: None, ..request(0).sampling }, ..request(0) }).tokens;
    assert_ne!(unseeded(0), unseeded(1));
}

#[test]
fn leaving_frees_slots_and_pages_at_every_stage() {
    let (engine, probe) = start(CAPACITY, Options { cache_bytes: 0, ..options() });
    // While it decodes.
    probe.allow(20);
    let mut decoding = engine.submit(greedy(vec![1, 2, 3], 100_000)).unwrap();
    first_token(&mut decoding);
    drop(decoding);
    probe.go_on();
    wait_for(&engine, |stats| stats.cancelled == 1 && is_empty(stats));
    // During prefill, and in the queue behind it.
    probe.allow_more(3);
    let mut generations: Vec<_> = (0..6).map(|_| engine.submit(greedy(vec![5; 5000], 5)).unwrap()).collect();
    while !matches!(generations[0].next_blocking(), Some(Event::Prefilled { .. })) {}
    drop(generations);
    probe.go_on();
    wait_for(&engine, |stats| stats.cancelled == 7 && is_empty(stats));
    assert!(probe.rows() < 5000, "nothing computes for nobody");
    let stats = engine.stats();
    assert_eq!((stats.submitted, stats.pages_cached), (7, 0));
}

#[test]
fn a_failed_pass_fails_its_requests_only() {
    let (engine, probe) = start(CAPACITY, options());
    probe.allow(20);
    let mut before = engine.submit(greedy(vec![1, 2], 100_000)).unwrap();
    first_token(&mut before);
    probe.fail_next.store(true, Ordering::SeqCst);
    probe.go_on();
    assert_eq!(hear_rest(before), "device: asked to fail");
    assert_eq!(answer(&engine, greedy(vec![4, 4], 9)).tokens, continuation(&[4, 4], 9));
    let stats = engine.stats();
    assert_eq!((stats.failed, stats.finished_length), (1, 1));
    assert!(is_empty(&stats));
}

#[test]
fn nobody_waits_for_an_engine_that_died() {
    let (engine, probe) = start(CAPACITY, options());
    probe.hold();
    let generations: Vec<_> = (0..6).map(|at| engine.submit(greedy(vec![at; 9], 5)).unwrap()).collect();
    probe.panic_next.store(true, Ordering::SeqCst);
    probe.go_on();
    for generation in generations {
        assert_eq!(hear(generation).end.unwrap_err(), "the engine stopped unexpectedly");
    }
    engine.shutdown(true);
    assert!(matches!(engine.submit(greedy(vec![1], 1)), Err(EngineError::Stopped)));
}

fn hear_rest(mut generation: Generation) -> String {
    loop {
        match generation.next_blocking() {
            Some(Event::Failed(error)) => return error.to_string(),
            Some(Event::Finished { .. }) | None => panic!("it should have failed"),
            Some(_) => {}
        }
    }
}

#[test]
fn shutdown_finishes_what_runs_and_refuses_what_waits() {
    let (engine, probe) = start(Capacity { slots: 2, ..CAPACITY }, options());
    probe.hold();
    let mut running: Vec<_> = (0..2).map(|at| engine.submit(greedy(vec![at, 7], 300)).unwrap()).collect();
    probe.allow(50);
    let first: Vec<u32> = running.iter_mut().map(first_token).collect();
    let waiting = engine.submit(greedy(vec![9, 9], 5)).unwrap();
    let closer = std::thread::spawn({
        let engine = engine.clone();
        move || engine.shutdown(true)
    });
    while !matches!(engine.submit(greedy(vec![1], 1)), Err(EngineError::ShuttingDown)) {
        std::thread::yield_now();
    }
    probe.go_on();
    for (at, generation) in running.into_iter().enumerate() {
        assert_eq!([vec![first[at]], rest(generation)].concat(), continuation(&[at as u32, 7], 300));
    }
    assert_eq!(hear(waiting).end.unwrap_err(), "the engine is shutting down");
    closer.join().unwrap();
}

#[test]
fn shutdown_under_load_ends_every_generation() {
    let (engine, _) = start(CAPACITY, options());
    let generations: Vec<_> = (0..40).map(|at| engine.submit(greedy(vec![at; 300], 100_000)).unwrap()).collect();
    engine.shutdown(false);
    for generation in generations {
        assert_eq!(hear(generation).end.unwrap_err(), "the engine is shutting down");
    }
    assert!(matches!(engine.submit(greedy(vec![1], 1)), Err(EngineError::ShuttingDown)));
    assert!(is_empty(&engine.stats()));
}

#[test]
fn an_engine_without_handles_finishes_its_work() {
    let (engine, _) = start(CAPACITY, options());
    let generations: Vec<_> = (0..8).map(|at| engine.submit(greedy(vec![at; 30], 20)).unwrap()).collect();
    drop(engine);
    for (at, generation) in generations.into_iter().enumerate() {
        assert_eq!(hear(generation).tokens, continuation(&[at as u32; 30], 20));
    }
}

#[test]
fn events_can_be_awaited() {
    let (engine, _) = start(CAPACITY, options());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tokens = runtime.block_on(async {
        let mut generation = engine.submit(greedy(vec![2, 4], 6)).unwrap();
        let mut tokens = Vec::new();
        while let Some(event) = generation.next().await {
            if let Event::Token { id, .. } = event {
                tokens.push(id);
            }
        }
        tokens
    });
    assert_eq!(tokens, continuation(&[2, 4], 6));
}
