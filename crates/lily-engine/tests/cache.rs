//! The state cache over the fake device: what is computed again, what is shared, what has to go, and that
//! no answer ever depends on it.

mod fake;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fake::{Answer, FakeDevice, PAGE_BYTES as PAGE, Probe, Random, STATE_BYTES as STATE, continuation, greedy, hear};
use lily_engine::{Engine, Event, Options, Request};
use lily_model::{Capacity, PAGE_TOKENS};

const CAPACITY: Capacity = Capacity { slots: 4, pages: 400, rows: 256, logit_rows: 8 };

fn options() -> Options {
    Options { chunk: 128, chunk_shared: 32, cache_bytes: 1 << 30, ..Options::default() }
}

fn start(capacity: Capacity, options: Options) -> (Engine, Arc<Probe>) {
    let probe = Arc::new(Probe::default());
    (Engine::start(FakeDevice::runner(capacity, probe.clone()), options), probe)
}

fn answer(engine: &Engine, request: Request) -> Answer {
    hear(engine.submit(request).unwrap())
}

/// An agent's conversation: a long system prompt, then messages of many lengths and greedy answers.
struct Conversation {
    random: Random,
    /// What the next prompt begins with: everything said so far, answers included.
    history: Vec<u32>,
    boundaries: Vec<usize>,
    /// The header of an assistant turn, which a boundary never includes.
    header: Vec<u32>,
}

impl Conversation {
    fn new(seed: u64, system: usize) -> Self {
        let mut random = Random(seed);
        Conversation { history: random.tokens(system), boundaries: vec![system], header: random.tokens(4), random }
    }

    fn turn(&mut self, message: usize, answer: usize) -> Request {
        self.history.extend(self.random.tokens(message));
        self.boundaries.push(self.history.len());
        let prompt = [&self.history[..], &self.header].concat();
        Request { keep_at: self.boundaries.clone(), ..greedy(prompt, answer) }
    }

    /// The client sends the answer back as it was.
    fn keep(&mut self, answer: &[u32]) {
        self.history.extend(&self.header);
        self.history.extend(answer);
    }
}

/// Plays the turns and returns what was computed again: rows beyond each turn's new tokens.
fn play(engine: &Engine, probe: &Probe, side_requests: bool) -> (usize, usize) {
    let mut talk = Conversation::new(7, 5000);
    let (mut again, mut known) = (0, 0);
    for turn in 0..30 {
        let message = [20, 60, 3000, 150, 700][turn % 5];
        let request = talk.turn(message, 40);
        let (prompt, total) = (request.prompt.clone(), request.prompt.len());
        let before = probe.rows();
        let found = answer(engine, request);
        assert_eq!(found.tokens, continuation(&prompt, 40), "turn {turn}");
        assert_eq!(found.usage().prompt_tokens, total);
        let new = total - known;
        again += (probe.rows() - before).saturating_sub(new + 39);
        talk.keep(&found.tokens);
        known = talk.history.len();
        if side_requests {
            // Titles and summaries: short prompts of their own.
            for _ in 0..3 {
                let prompt = talk.random.tokens(300);
                answer(engine, greedy(prompt, 10));
            }
        }
    }
    (again, known)
}

#[test]
fn thirty_turns_compute_nothing_twice() {
    let (engine, probe) = start(CAPACITY, options());
    let (again, total) = play(&engine, &probe, false);
    assert!(again * 20 <= total, "{again} of {total} tokens were computed again");
    assert!(again <= 30 * 2, "only the last token of each answer: {again}");
    let stats = engine.stats();
    assert_eq!((stats.cache.hits, stats.cache.misses_empty, stats.cache.misses()), (29, 1, 1));
}

#[test]
fn without_a_cache_the_answers_are_the_same() {
    let (engine, probe) = start(CAPACITY, Options { cache_bytes: 0, ..options() });
    let (again, total) = play(&engine, &probe, false);
    assert!(again > total);
    assert_eq!(engine.stats().cache.misses_off, 30);
    assert_eq!(engine.stats().pages_cached, 0);
}

#[test]
fn side_requests_do_not_evict_the_conversation() {
    // Room for the conversation's pages and a handful of copies.
    let cache_bytes = 130 * PAGE + 6 * STATE;
    let (engine, probe) = start(CAPACITY, Options { cache_bytes, ..options() });
    let (again, total) = play(&engine, &probe, true);
    assert!(again * 20 <= total, "{again} of {total} tokens were computed again");
    let stats = engine.stats();
    assert!(stats.cache.evicted_for_bytes > 0);
    assert!(stats.cache.bytes <= cache_bytes);
}

#[test]
fn the_same_prompt_twice_hits_and_answers_alike() {
    let (engine, probe) = start(CAPACITY, options());
    let prompt = Random(1).tokens(2200);
    let cold = answer(&engine, greedy(prompt.clone(), 30));
    let before = probe.rows();
    let warm = answer(&engine, greedy(prompt.clone(), 30));
    assert_eq!((cold.cached, warm.cached), (0, 2048));
    assert_eq!(probe.rows() - before, 2200 - 2048 + 29);
    assert_eq!((&cold.tokens, &warm.tokens), (&continuation(&prompt, 30), &continuation(&prompt, 30)));

    // A boundary right at the end of the prompt does not spare the last token.
    let keep_at = vec![2199, 2200];
    let again = answer(&engine, Request { keep_at: keep_at.clone(), ..greedy(prompt.clone(), 30) });
    let last = answer(&engine, Request { keep_at, ..greedy(prompt, 30) });
    assert_eq!((again.cached, last.cached), (2048, 2199));
    assert_eq!(last.tokens, cold.tokens);
}

#[test]
fn chunks_are_cut_alike_cold_and_warm() {
    let (engine, probe) = start(CAPACITY, options());
    let request = || Request { keep_at: vec![700, 1500], ..greedy(Random(2).tokens(1700), 1) };
    let spans = |from: usize| -> Vec<(usize, usize)> {
        probe.passes.lock().unwrap()[from..].iter().flatten().map(|span| (span.1, span.0)).collect()
    };
    answer(&engine, request());
    let cold = spans(0);
    let passes = probe.passes.lock().unwrap().len();
    assert_eq!(answer(&engine, request()).cached, 1500);
    let warm = spans(passes);
    assert_eq!(warm[..], cold[cold.len() - warm.len()..]);
    assert_eq!(warm[0], (1500, 36), "up to the next multiple of the chunk");
}

#[test]
fn a_changing_tail_recomputes_from_the_last_copy() {
    let (engine, probe) = start(CAPACITY, options());
    let mut random = Random(3);
    let stem = random.tokens(9000);
    for turn in 0..5 {
        let prompt = [&stem[..], &random.tokens(50)].concat();
        let request = Request { keep_at: vec![9000], ..greedy(prompt.clone(), 5) };
        let before = probe.rows();
        let found = answer(&engine, request);
        assert_eq!(found.tokens, continuation(&prompt, 5));
        if turn > 0 {
            assert_eq!((found.cached, probe.rows() - before), (9000, 50 + 4));
        }
    }
}

#[test]
fn a_rewritten_answer_resumes_at_the_boundary_before_it() {
    let (engine, _) = start(CAPACITY, options());
    let mut talk = Conversation::new(5, 600);
    let first = talk.turn(200, 300);
    let boundary = first.keep_at[1];
    let found = answer(&engine, first);
    // The chat format drops old thinking: only the answer's end comes back.
    talk.keep(&found.tokens[250..]);
    let second = talk.turn(30, 20);
    let prompt = second.prompt.clone();
    let found = answer(&engine, second);
    assert!(found.cached >= boundary, "{} < {boundary}", found.cached);
    assert_eq!(found.tokens, continuation(&prompt, 20));
}

#[test]
fn the_reasons_of_misses_are_counted() {
    let (engine, _) = start(CAPACITY, options());
    answer(&engine, greedy(vec![1; 40], 5));
    answer(&engine, greedy(vec![2; 40], 5));
    answer(&engine, greedy([vec![1; 20], vec![3; 20]].concat(), 5));
    let cache = engine.stats().cache;
    assert_eq!((cache.misses_empty, cache.misses_other_prompt, cache.misses_no_copy, cache.hits), (1, 1, 1, 0));
    assert_eq!(cache.entries, 3);
}

#[test]
fn concurrent_requests_share_one_prefix() {
    let (engine, probe) = start(CAPACITY, options());
    let prompt = Random(6).tokens(3000);
    probe.hold();
    let request = || Request { keep_at: vec![2990], ..greedy(prompt.clone(), 25) };
    let generations: Vec<_> = (0..4).map(|_| engine.submit(request()).unwrap()).collect();
    probe.go_on();
    let answers: Vec<_> = generations.into_iter().map(hear).collect();
    assert!(answers.iter().all(|found| found.tokens == continuation(&prompt, 25)));
    assert_eq!(answers.iter().map(|found| found.cached).collect::<Vec<_>>(), [0, 2990, 2990, 2990]);
    assert_eq!(probe.rows(), 3000 + 3 * 10 + 4 * 24);
    // Each wrote its own copy of the page that position 2990 lies in; the first went on in its own.
    assert_eq!(probe.page_copies.load(Ordering::SeqCst), 3);
}

#[test]
fn who_waits_for_a_shared_prefix_holds_up_nobody_else() {
    let (engine, probe) = start(CAPACITY, options());
    let (shared, other) = (Random(11).tokens(3000), Random(12).tokens(700));
    probe.hold();
    let request = || Request { keep_at: vec![2990], ..greedy(shared.clone(), 3) };
    let generations = [engine.submit(request()).unwrap(), engine.submit(request()).unwrap()];
    let unrelated = engine.submit(greedy(other.clone(), 3)).unwrap();
    probe.go_on();
    assert_eq!(hear(unrelated).tokens, continuation(&other, 3));
    assert_eq!(generations.map(|generation| hear(generation).cached), [0, 2990]);
    let passes = probe.passes.lock().unwrap();
    let ends = |length: usize| passes.iter().position(|spans| spans.iter().any(|span| span.2 && span.0 + span.1 == length)).unwrap();
    assert!(ends(700) < ends(3000));
}

#[test]
fn what_a_leaver_computed_is_kept() {
    let (engine, _) = start(CAPACITY, options());
    let prompt = Random(8).tokens(3000);
    let mut left = engine.submit(greedy(prompt.clone(), 5)).unwrap();
    while !matches!(left.next_blocking(), Some(Event::Prefilled { done: 1024.., .. })) {}
    drop(left);
    let found = answer(&engine, greedy(prompt.clone(), 5));
    assert!(found.cached >= 1024, "{}", found.cached);
    assert_eq!(found.tokens, continuation(&prompt, 5));
}

#[test]
fn tiny_budgets_evict_and_never_overflow() {
    for cache_bytes in [STATE + PAGE - 1, STATE + PAGE, 3 * STATE + 4 * PAGE, 20 * PAGE] {
        let (engine, _) = start(Capacity { pages: 30, ..CAPACITY }, Options { cache_bytes, keep_every: 300, ..options() });
        let mut random = Random(9);
        let stems: Vec<Vec<u32>> = (0..3).map(|_| random.tokens(1200)).collect();
        for _ in 0..40 {
            let mut prompt = stems[random.below(3)][..1 + random.below(1200)].to_vec();
            let tail = 1 + random.below(60);
            prompt.extend(random.tokens(tail));
            let found = answer(&engine, greedy(prompt.clone(), 20));
            assert_eq!(found.tokens, continuation(&prompt, 20));
            let cache = engine.stats().cache;
            assert!(cache.bytes <= cache_bytes, "{} of {cache_bytes}", cache.bytes);
        }
        let stats = engine.stats();
        assert_eq!(stats.pages_used, 0);
        assert_eq!(stats.cache.entries == 0, cache_bytes < STATE + PAGE);
    }
}

#[test]
fn cached_pages_make_way_for_running_sequences() {
    // Ten pages: each prompt takes nine, so each one pushes out what the one before left.
    let (engine, _) = start(Capacity { pages: 10, ..CAPACITY }, options());
    for seed in 0..6 {
        let prompt = Random(100 + seed).tokens(9 * PAGE_TOKENS - 30);
        let found = answer(&engine, greedy(prompt.clone(), 20));
        assert_eq!(found.tokens, continuation(&prompt, 20));
    }
    let stats = engine.stats();
    assert!(stats.cache.evicted_for_pages > 0);
    assert_eq!((stats.pages_used, stats.preempted), (0, 0));
}
