//! The team: threads made once that run one parallel region after another, fast enough for one token at
//! a time.
//!
//! Start with [`Team::run`]. A region is elastic: the caller starts at once, the other members join when
//! they come, and whoever comes too late is not waited for. So all work must be handed out by [`Chunks`].
//! A waiting thread spins for a few microseconds, then yields its core, then sleeps: the usual wait costs no
//! system call. With other jobs on the cores the team slows down in proportion: it never spins away the time
//! that its own members need, and never waits for a member that the system has not let run.

mod cores;
mod slices;

pub use slices::{Cells, Disjoint};

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Polls before a waiter starts to yield: about 10 us, longer than the gap between two steps of a token.
const SPINS: u32 = 400;
/// Yields before a waiter sleeps: a fraction of a millisecond on idle cores.
const YIELDS: u32 = 100;

type Region<'a> = dyn Fn(&Worker<'_>) + Sync + 'a;

/// One member of a running region.
pub struct Worker<'a> {
    /// `0..count`; 0 is the thread that called [`Team::run`]. No two members of a region have the same.
    pub index: usize,
    /// Members of the team. Fewer may take part in a region.
    pub count: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Waits until all that was taken from `chunks` is done and nothing is left. What was written meanwhile
    /// is visible after.
    pub fn finish(&self, chunks: &Chunks) {
        let done = || chunks.done.load(Ordering::SeqCst) >= chunks.total;
        self.shared.wait(self.index, || done() || self.shared.broken());
        assert!(!self.shared.broken(), "another member of the team panicked");
    }
}

/// Uneven work in a region: members take ranges of `0..total` until none is left. Ranges shrink towards
/// the end, so that members finish together even when another job slows one of them.
pub struct Chunks {
    next: AtomicUsize,
    done: AtomicUsize,
    total: usize,
    granule: usize,
}

/// A range that a member has taken; done when dropped.
pub struct Taken<'a> {
    range: Range<usize>,
    chunks: &'a Chunks,
    shared: &'a Shared,
}

impl Deref for Taken<'_> {
    type Target = Range<usize>;

    fn deref(&self) -> &Range<usize> {
        &self.range
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let done = self.chunks.done.fetch_add(self.range.len(), Ordering::SeqCst) + self.range.len();
        if done >= self.chunks.total {
            self.shared.wake_all();
        }
    }
}

impl Chunks {
    pub fn new(total: usize, granule: usize) -> Chunks {
        Chunks { next: AtomicUsize::new(0), done: AtomicUsize::new(0), total, granule: granule.max(1) }
    }

    /// The next range: a fraction of what is left, a multiple of the granule except at the end.
    pub fn take<'t>(&'t self, worker: &Worker<'t>) -> Option<Taken<'t>> {
        let mut start = self.next.load(Ordering::Relaxed);
        loop {
            if start >= self.total {
                return None;
            }
            let length = ((self.total - start) / (2 * worker.count) / self.granule).max(1) * self.granule;
            let end = (start + length).min(self.total);
            match self.next.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Taken { range: start..end, chunks: self, shared: worker.shared }),
                Err(now) => start = now,
            }
        }
    }
}

/// Threads that run regions together. Idle members sleep.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of `count` members, the calling thread included; `count - 1` threads are made.
    pub fn new(count: usize) -> Team {
        let count = count.max(1);
        let shared = Arc::new(Shared::new(count));
        let threads = (1..count)
            .map(|index| {
                let shared = Arc::clone(&shared);
                let body = move || member(&shared, index);
                std::thread::Builder::new().name(format!("lily-cpu-{index}")).spawn(body).expect("threads can be made")
            })
            .collect();
        Team { shared, threads }
    }

    /// One member per core that this process may use: affinity and container quotas count.
    pub fn for_machine() -> Team {
        Team::new(cores::usable())
    }

    /// Members of the team.
    pub fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `region` on the calling thread and on every member that comes before it is over; returns when
    /// all of them are done. The region must be right whoever takes part: work comes from [`Chunks`], and
    /// a phase that needs the one before ends that with [`Worker::finish`]. A panic is passed on.
    pub fn run<F: Fn(&Worker<'_>) + Sync>(&mut self, region: F) {
        let shared = &*self.shared;
        let count = self.count();
        if count > 1 {
            let region: &Region<'_> = &region;
            // SAFETY: members use the pointer only between joining and leaving, and this function does not
            // return before all that joined have left; `&mut self` keeps other regions out meanwhile.
            unsafe {
                *shared.region.get() = Some(std::mem::transmute::<&Region<'_>, &'static Region<'static>>(region));
            }
            *shared.parked[0].thread.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(std::thread::current());
            shared.entry.open();
            shared.wake_all();
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| region(&Worker { index: 0, count, shared }))) {
            shared.fail(panic);
        }
        if count > 1 {
            let joined = shared.entry.close();
            shared.wait(0, || shared.left.load(Ordering::SeqCst) == joined);
            shared.left.store(0, Ordering::SeqCst);
        }
        if shared.broken() {
            let panic = shared.panic.lock().unwrap_or_else(|poison| poison.into_inner()).take();
            shared.panicked.store(false, Ordering::SeqCst);
            resume_unwind(panic.expect("a broken region left its panic"));
        }
    }

    /// Runs `work` on ranges that cover `0..total`, cut at multiples of `granule`.
    pub fn for_each_chunk<F: Fn(Range<usize>) + Sync>(&mut self, total: usize, granule: usize, work: F) {
        let chunks = Chunks::new(total, granule);
        self.run(|worker| {
            while let Some(taken) = chunks.take(worker) {
                work(taken.clone());
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.entry.open();
        self.shared.wake_all();
        for thread in self.threads.drain(..) {
            // A member's panic was already passed on by `run`.
            let _ = thread.join();
        }
    }
}

/// The door of the current region: its number, whether it is closed, and how many have joined, in one word.
#[repr(align(128))]
struct Entry(AtomicU64);

const CLOSED: u64 = 1 << 31;
const NUMBER: u64 = 1 << 32;

impl Entry {
    /// Starts the next region.
    fn open(&self) {
        let number = self.0.load(Ordering::SeqCst) / NUMBER;
        self.0.store(number.wrapping_add(1).wrapping_mul(NUMBER), Ordering::SeqCst);
    }

    /// Lets nobody in any more; how many joined.
    fn close(&self) -> usize {
        (self.0.fetch_or(CLOSED, Ordering::SeqCst) % CLOSED) as usize
    }

    fn number(&self) -> u64 {
        self.0.load(Ordering::SeqCst) / NUMBER
    }

    /// Joins the current region; `None` if it is over.
    fn join(&self) -> Option<()> {
        let join = |word: u64| (word & CLOSED == 0).then_some(word + 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, join).ok().map(|_| ())
    }
}

/// A thread that may be asleep.
struct Parked {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// On its own cache line: members poll it while others work.
#[repr(align(128))]
struct Line(AtomicUsize);

impl Deref for Line {
    type Target = AtomicUsize;

    fn deref(&self) -> &AtomicUsize {
        &self.0
    }
}

struct Shared {
    entry: Entry,
    /// Members that joined the region and have finished.
    left: Line,
    region: UnsafeCell<Option<&'static Region<'static>>>,
    parked: Vec<Parked>,
    stopping: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `region` is written by the caller of `run` before the door opens and read by members that have
// joined; everything else is atomic or behind a lock.
unsafe impl Sync for Shared {}
// SAFETY: as above; the region itself is `Sync`.
unsafe impl Send for Shared {}

impl Shared {
    fn new(count: usize) -> Shared {
        Shared {
            entry: Entry(AtomicU64::new(CLOSED)),
            left: Line(AtomicUsize::new(0)),
            region: UnsafeCell::new(None),
            parked: (0..count).map(|_| Parked { asleep: AtomicBool::new(false), thread: Mutex::new(None) }).collect(),
            stopping: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    fn broken(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Keeps the first panic of a region and lets waiting members see it.
    fn fail(&self, panic: Box<dyn Any + Send>) {
        self.panic.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(panic);
        self.panicked.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Waits for `ready`: spin, yield, sleep. Whoever makes it true calls `wake_all` afterwards; both
    /// sides use sequentially consistent order, so either the sleeper sees the change or is seen asleep.
    fn wait(&self, index: usize, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if ready() {
                return;
            }
            std::thread::yield_now();
        }
        let own = &self.parked[index];
        loop {
            own.asleep.store(true, Ordering::SeqCst);
            if ready() {
                break;
            }
            std::thread::park();
        }
        own.asleep.store(false, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        for member in &self.parked {
            if !member.asleep.load(Ordering::SeqCst) || !member.asleep.swap(false, Ordering::SeqCst) {
                continue;
            }
            if let Some(thread) = &*member.thread.lock().unwrap_or_else(|poison| poison.into_inner()) {
                thread.unpark();
            }
        }
    }
}

/// The life of a member other than 0.
fn member(shared: &Shared, index: usize) {
    *shared.parked[index].thread.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(std::thread::current());
    let mut seen = 0;
    loop {
        shared.wait(index, || shared.entry.number() != seen);
        // Whatever region is open now: if another has started since, it is seen twice, and closed then.
        seen = shared.entry.number();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if shared.entry.join().is_none() {
            continue;
        }
        // SAFETY: the region was written before the door opened, and the caller waits for whoever joined.
        let region = unsafe { *shared.region.get() };
        let region = region.expect("an open region is there");
        let worker = Worker { index, count: shared.parked.len(), shared };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| region(&worker))) {
            shared.fail(panic);
        }
        shared.left.fetch_add(1, Ordering::SeqCst);
        shared.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        for count in [1, 2, 3, 8] {
            let mut team = Team::new(count);
            for total in [1, 2, 7, 64] {
                for _ in 0..50 {
                    let (first, second) = (Chunks::new(total, 1), Chunks::new(total, 2));
                    let mut values = vec![0; total];
                    let hits = Disjoint::new(&mut values);
                    let sum = AtomicUsize::new(0);
                    team.run(|worker| {
                        while let Some(taken) = first.take(worker) {
                            // SAFETY: ranges taken are disjoint.
                            unsafe { hits.slice(taken.clone()) }.fill(1);
                        }
                        worker.finish(&first);
                        while let Some(taken) = second.take(worker) {
                            // SAFETY: as above; the first phase is over.
                            let ones: usize = unsafe { hits.slice(taken.clone()) }.iter().sum();
                            sum.fetch_add(ones, Ordering::SeqCst);
                        }
                        worker.finish(&second);
                        assert_eq!(sum.load(Ordering::SeqCst), total);
                    });
                }
            }
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        for count in [1, 2, 3, 8] {
            for (total, granule) in [(0, 4), (1, 4), (31, 8), (1000, 1), (1003, 16)] {
                let mut team = Team::new(count);
                let hits: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                team.for_each_chunk(total, granule, |range| {
                    assert!(range.start % granule == 0 && (range.end % granule == 0 || range.end == total));
                    range.for_each(|i| {
                        hits[i].fetch_add(1, Ordering::SeqCst);
                    });
                });
                assert!(hits.iter().all(|hit| hit.load(Ordering::SeqCst) == 1));
            }
        }
    }

    #[test]
    fn a_panic_passes_through_and_the_team_lives_on() {
        let mut team = Team::new(3);
        for guilty in 0..40 {
            let chunks = Chunks::new(40, 1);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(|worker| {
                    while let Some(taken) = chunks.take(worker) {
                        assert!(!taken.contains(&guilty), "guilty");
                    }
                    worker.finish(&chunks);
                });
            }));
            assert!(outcome.is_err());
            let ran = AtomicUsize::new(0);
            team.for_each_chunk(5, 1, |range| {
                ran.fetch_add(range.len(), Ordering::SeqCst);
            });
            assert_eq!(ran.load(Ordering::SeqCst), 5);
        }
    }
}
