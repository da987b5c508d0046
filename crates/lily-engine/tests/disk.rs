//! The disk tier over the fake device: what survives a restart and a kill, what damage does (nothing), and
//! that the size limit holds.

mod fake;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fake::{Answer, FakeDevice, PAGE_BYTES, Probe, Random, STATE_BYTES, continuation, greedy, hear};
use lily_engine::{DiskOptions, Engine, Options, Request};
use lily_model::Capacity;

const CAPACITY: Capacity = Capacity { slots: 4, pages: 200, rows: 256, logit_rows: 8 };

fn options(directory: &Path, bytes_max: u64) -> Options {
    let disk = DiskOptions { directory: directory.to_owned(), bytes_max, model: "a model".into() };
    Options { chunk: 128, chunk_shared: 32, cache_bytes: 1 << 30, disk: Some(disk), ..Options::default() }
}

fn start(capacity: Capacity, options: Options) -> Engine {
    Engine::start(FakeDevice::runner(capacity, Arc::new(Probe::default())), options)
}

/// The files of a kind, whatever the model's directory is called.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let models = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = models.flat_map(|model| fs::read_dir(model).unwrap()).map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn file_bytes(directory: &Path) -> u64 {
    ["state", "page", "tmp"].iter().flat_map(|extension| files(directory, extension)).map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// A conversation whose turns follow from the seed: `(prompt, boundary)` of each.
fn turns(seed: u64, count: usize) -> Vec<Request> {
    let mut random = Random(seed);
    let mut history = random.tokens(1500);
    (0..count)
        .map(|turn| {
            history.extend(random.tokens(40 + 300 * (turn % 2)));
            let request = Request { keep_at: vec![1500, history.len()], ..greedy([&history[..], &[1, 2, 3]].concat(), 30) };
            history = [&request.prompt[..], &continuation(&request.prompt, 30)].concat();
            request
        })
        .collect()
}

fn answer(engine: &Engine, request: &Request) -> Answer {
    let found = hear(engine.submit(Request { keep_at: request.keep_at.clone(), ..greedy(request.prompt.clone(), 30) }).unwrap());
    assert_eq!(found.tokens, continuation(&request.prompt, 30));
    found
}

/// Plays turns on a fresh engine and shuts it down.
fn play(directory: &Path, bytes_max: u64, turns: &[Request]) -> Vec<usize> {
    let engine = start(CAPACITY, options(directory, bytes_max));
    let cached = turns.iter().map(|turn| answer(&engine, turn).cached).collect();
    engine.shutdown(true);
    cached
}

#[test]
fn a_conversation_survives_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let turns = turns(1, 6);
    assert_eq!(play(directory.path(), u64::MAX, &turns[..2])[0], 0);
    let known = turns[1].prompt.len() + 29;
    assert_eq!(play(directory.path(), u64::MAX, &turns[2..3]), [known]);
    // Everything again, from the beginning: each turn finds its own boundary.
    let engine = start(CAPACITY, options(directory.path(), u64::MAX));
    for turn in &turns {
        assert!(answer(&engine, turn).cached >= 1500);
    }
    let cache = engine.stats().cache;
    assert!(cache.hits_disk >= 1 && cache.hits_disk + cache.hits == 6, "{cache:?}");
    engine.shutdown(true);
    let cache = engine.stats().cache;
    assert_eq!((cache.disk_entries, cache.disk_bytes), (files(directory.path(), "state").len(), file_bytes(directory.path())));
    assert!(cache.disk_entries > 6);
    // Full pages are there once, however many states refer to them.
    assert_eq!(files(directory.path(), "page").len(), (turns[5].prompt.len() + 29) / 256);
    assert!(files(directory.path(), "tmp").is_empty());
}

#[test]
fn damaged_files_cost_their_tokens_and_nothing_else() {
    let turns = turns(2, 3);
    for kind in ["state", "page"] {
        for damage in [truncate as fn(&Path), flip_last, empty, replace] {
            let directory = tempfile::tempdir().unwrap();
            play(directory.path(), u64::MAX, &turns[..2]);
            files(directory.path(), kind).iter().for_each(|path| damage(path));
            assert_eq!(play(directory.path(), u64::MAX, &turns[2..]), [0]);
            // What was damaged is written anew.
            assert_eq!(play(directory.path(), u64::MAX, &turns[2..]), [turns[2].prompt.len() - 3]);
        }
    }
}

fn truncate(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

fn flip_last(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn empty(path: &Path) {
    fs::write(path, "").unwrap();
}

fn replace(path: &Path) {
    fs::write(path, "not a cache file at all, but as long as a header would be ".repeat(3)).unwrap();
}

#[test]
fn foreign_files_and_other_models_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let turns = turns(3, 2);
    play(directory.path(), u64::MAX, &turns[..1]);
    let model = files(directory.path(), "state")[0].parent().unwrap().to_owned();
    fs::write(model.join("notes.txt"), "mine").unwrap();
    fs::write(model.join("0123.page"), "mine too").unwrap();
    fs::write(directory.path().join("file"), "and this").unwrap();

    let mut other = options(directory.path(), u64::MAX);
    other.disk.as_mut().unwrap().model = "another model".into();
    let engine = start(CAPACITY, other);
    assert_eq!(answer(&engine, &turns[1]).cached, 0);
    engine.shutdown(true);

    assert_eq!(play(directory.path(), u64::MAX, &turns[1..]), [turns[0].prompt.len() + 29]);
    assert_eq!(fs::read_to_string(model.join("notes.txt")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(model.join("0123.page")).unwrap(), "mine too");
}

#[test]
fn the_size_limit_holds_and_the_oldest_goes_first() {
    let directory = tempfile::tempdir().unwrap();
    let conversation = (3 * STATE_BYTES + 12 * PAGE_BYTES) as u64;
    let limit = 2 * conversation;
    let all: Vec<Vec<Request>> = (0..5).map(|seed| turns(10 + seed, 2)).collect();
    for turns in &all {
        play(directory.path(), limit, turns);
        assert!(file_bytes(directory.path()) <= limit);
    }
    let next = |at: usize| play(directory.path(), limit, &turns(10 + at as u64, 3)[2..])[0];
    assert!(next(4) > 1500);
    assert_eq!(next(0), 0);
    // A smaller limit than one state: nothing is kept.
    play(directory.path(), 100, &all[0]);
    assert_eq!(file_bytes(directory.path()), 0);
}

#[test]
fn one_process_at_a_time_keeps_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let turns = turns(4, 2);
    let first = start(CAPACITY, options(directory.path(), u64::MAX));
    answer(&first, &turns[0]);
    let second = start(CAPACITY, options(directory.path(), u64::MAX));
    answer(&second, &turns[1]);
    assert_eq!((second.stats().cache.disk_entries, second.stats().cache.hits_disk), (0, 0));
    first.shutdown(true);
    second.shutdown(true);
    assert_eq!(play(directory.path(), u64::MAX, &turns[1..]), [turns[0].prompt.len() + 29]);
}

#[test]
fn an_unusable_directory_is_done_without() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(play(&file, u64::MAX, &turns(5, 1)), [0]);
}

#[test]
fn pages_on_their_way_to_disk_make_way_for_running_sequences() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(Capacity { pages: 12, ..CAPACITY }, options(directory.path(), 40 * PAGE_BYTES as u64 + 10 * STATE_BYTES as u64));
    std::thread::scope(|scope| {
        for client in 0..6 {
            let engine = &engine;
            scope.spawn(move || turns(20 + client % 3, 5).iter().for_each(|turn| _ = answer(engine, turn)));
        }
    });
    engine.shutdown(true);
    let stats = engine.stats();
    assert_eq!((stats.failed, stats.pages_used, stats.slots_used), (0, 0, 0));
    assert!(stats.cache.evicted_for_pages > 0);
}

/// What the kill test kills: the same conversation and others, until it dies.
#[test]
#[ignore = "a part of `what_was_written_survives_a_kill`, which starts it"]
fn victim() {
    let directory = PathBuf::from(std::env::var_os("LILY_ENGINE_TEST_DISK").expect("the killing test names the directory"));
    let engine = start(CAPACITY, options(&directory, u64::MAX));
    turns(6, 2).iter().for_each(|turn| _ = answer(&engine, turn));
    for seed in 1000.. {
        turns(seed, 3).iter().for_each(|turn| _ = answer(&engine, turn));
    }
}

#[test]
fn what_was_written_survives_a_kill() {
    let turns = turns(6, 3);
    for states in [5, 9, 16] {
        let directory = tempfile::tempdir().unwrap();
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--ignored", "--quiet"])
            .env("LILY_ENGINE_TEST_DISK", directory.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The first conversation's five states come first.
        while files(directory.path(), "state").len() < states {
            assert!(victim.try_wait().unwrap().is_none(), "the victim died of something else");
            std::thread::yield_now();
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert_eq!(play(directory.path(), u64::MAX, &turns[2..]), [turns[1].prompt.len() + 29]);
        assert!(files(directory.path(), "tmp").is_empty());
    }
}
