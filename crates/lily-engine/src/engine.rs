//! The handle that callers hold: checks a request, queues it, stops the thread.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use lily_model::{Device, PAGE_TOKENS, Runner};
use tokio::sync::mpsc::unbounded_channel;

use crate::disk::DiskTier;
use crate::inbox::{Closing, Inbox};
use crate::scheduler::Scheduler;
use crate::stats::Stats;
use crate::{EngineError, Generation, Options, Request, sampling};

/// A running engine; clone it freely. When the last clone is gone, what was submitted is finished and
/// the engine's thread ends.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
    context: usize,
    vocab: usize,
    device_name: String,
    /// Filled once by the thread.
    found_on_disk: Mutex<Receiver<Vec<Vec<u32>>>>,
}

impl Engine {
    /// Starts the engine's thread over a runner.
    pub fn start<D>(runner: Runner<D>, options: Options) -> Engine
    where
        D: Device + 'static,
        D::Buffer: Send,
    {
        let capacity = runner.device.capacity();
        let context = options.context.min(runner.config.context_max).min(capacity.pages * PAGE_TOKENS);
        let inbox = Arc::new(Inbox::new(capacity.slots, options.queue_max));
        let (vocab, device_name) = (runner.config.vocab, runner.device.name());
        let options = Options { context, ..options };
        let scheduler_inbox = inbox.clone();
        let (found, found_on_disk) = sync_channel(1);
        let work = move || {
            let _seal = SealAtEnd(scheduler_inbox.clone());
            let scheduler = Scheduler::new(runner, options, scheduler_inbox);
            // Nobody may ever ask.
            let _ = found.send(scheduler.disk.as_ref().map(DiskTier::longest).unwrap_or_default());
            scheduler.run();
        };
        let thread = thread::Builder::new().name("lily-engine".into()).spawn(work).expect("the system can start a thread");
        let (thread, found_on_disk) = (Mutex::new(Some(thread)), Mutex::new(found_on_disk));
        Engine { handle: Arc::new(Handle { inbox, thread, context, vocab, device_name, found_on_disk }) }
    }

    /// Queues a request; fails at once where it can never run. Does not block.
    pub fn submit(&self, request: Request) -> Result<Generation, EngineError> {
        let Handle { context, vocab, .. } = *self.handle;
        if request.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if request.prompt.len() > context {
            return Err(EngineError::PromptTooLong { prompt: request.prompt.len(), context });
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::UnknownToken { token, vocab });
        }
        sampling::check(&request.sampling, vocab)?;
        let (sender, receiver) = unbounded_channel();
        self.handle.inbox.accept(request, sender)?;
        Ok(Generation::new(receiver, self.handle.inbox.clone()))
    }

    /// The conversations that the cache directory held at the start, as tokens; empty when asked again. Blocks
    /// until the directory is read.
    pub fn take_found_on_disk(&self) -> Vec<Vec<u32>> {
        self.handle.found_on_disk.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap_or_default()
    }

    /// Positions a sequence may have.
    pub fn context(&self) -> usize {
        self.handle.context
    }

    /// The model's vocabulary: tokens are below it.
    pub fn vocab(&self) -> usize {
        self.handle.vocab
    }

    /// For logs and `/health`, such as `cpu (avx512, 2 threads)`.
    pub fn device_name(&self) -> &str {
        &self.handle.device_name
    }

    /// Counters and gauges as of the last pass.
    pub fn stats(&self) -> Stats {
        self.handle.inbox.stats()
    }

    /// Stops accepting, refuses what waits, finishes or cancels what runs, joins the thread.
    pub fn shutdown(&self, finish_running: bool) {
        self.handle.inbox.close(if finish_running { Closing::Finish } else { Closing::Cancel });
        let thread = self.handle.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was reported where it happened, and every generation hears of it.
            let _ = thread.join();
        }
    }
}

/// However the thread ends, nobody may go on waiting for it.
struct SealAtEnd(Arc<Inbox>);

impl Drop for SealAtEnd {
    fn drop(&mut self) {
        self.0.seal(thread::panicking());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.close(Closing::Drain);
    }
}
