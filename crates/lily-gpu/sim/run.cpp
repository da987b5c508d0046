// Launches: lane stacks, the life of a lane, threadgroups one after another, and the table that the host calls.
#include "host.h"
#include <cstdlib>
#include <sys/mman.h>
#include <csignal>

namespace ly {
#ifdef __linux__
__thread Group *G __attribute__((tls_model("initial-exec")));
#else
__thread Group *G;
#endif

#ifdef LY_CHECKED
constexpr size_t STACK_BYTES = 64 << 10;
constexpr bool STACK_GUARDS = true;
#else
constexpr size_t STACK_BYTES = 16 << 10;
constexpr bool STACK_GUARDS = false;  // a mark at the end of each stack instead: pages would cost time
#endif
constexpr size_t STACKS_BYTES = STACK_BYTES * LANES_MAX;
constexpr size_t HUGE_PAGE = 2 << 20;
constexpr size_t BELOW_BYTES = 1 << 20;  // out of bounds below all stacks, where other threads' memory may be
constexpr size_t MAP_BYTES = BELOW_BYTES + HUGE_PAGE + STACKS_BYTES;
constexpr size_t SIGNAL_STACK_BYTES = 64 << 10;
constexpr size_t SHARED_BYTES = (227 << 10) + (4 << 10);  // redzones included
constexpr uint64_t STACK_MARK = 0x6c696c79'7374616bull;

// What one host thread uses again and again.
struct Worker {
  Group group;
  unsigned char *map, *stacks;
  void *signal_stack;
  alignas(64) unsigned char shared[SHARED_BYTES];
  alignas(64) unsigned char scratch[SCRATCH_BYTES];

  Worker();
  ~Worker();
  uint64_t &mark(uint lane) { return *reinterpret_cast<uint64_t *>(stacks + lane * STACK_BYTES); }
};
static thread_local std::unique_ptr<Worker> worker;

Worker::Worker() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(nullptr, MAP_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) abort();
  map = static_cast<unsigned char *>(memory);
  stacks = reinterpret_cast<unsigned char *>((reinterpret_cast<uintptr_t>(map) + BELOW_BYTES + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
  mprotect(map, size_t(stacks - map), PROT_NONE);
  if (STACK_GUARDS) {
    for (uint lane = 0; lane < LANES_MAX; ++lane) mprotect(stacks + lane * STACK_BYTES, 4096, PROT_NONE);
  } else {
#ifdef __linux__
    madvise(stacks, STACKS_BYTES, MADV_HUGEPAGE);
#endif
    for (uint lane = 0; lane < LANES_MAX; ++lane) mark(lane) = STACK_MARK;
  }
  signal_stack = malloc(SIGNAL_STACK_BYTES);
  stack_t alternate = {};
  alternate.ss_sp = signal_stack;
  alternate.ss_size = SIGNAL_STACK_BYTES;
  sigaltstack(&alternate, nullptr);
}

Worker::~Worker() {
  stack_t now = {};
  sigaltstack(nullptr, &now);
  if (now.ss_sp == signal_stack) {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  free(signal_stack);
  munmap(map, MAP_BYTES);
}

bool on_stack_guard(const void *at) {
  const unsigned char *byte = static_cast<const unsigned char *>(at);
  if (!worker || byte < worker->map || byte >= worker->stacks + STACKS_BYTES) return false;
  if (byte < worker->stacks) return true;
  return STACK_GUARDS && size_t(byte - worker->stacks) % STACK_BYTES < 4096;
}

// A fiber's life: runs its lane, then lanes that have not started, then leaves for a parked one and never comes back.
static void lane_entry() {
  Group &g = *G;
  for (;;) {
    g.current->fresh &= ~(1u << (g.lane & 31));
    g.kernel->lane(g);
    Simdgroup *s = g.current;
    uint bit = 1u << (g.lane & 31);
    s->ready &= ~bit;
    s->live &= ~bit;
    if (!s->ready) {
      if (s->live) diverged("return");
      g.open &= ~(1u << g.simdgroup);
      g.alive &= ~(1u << g.simdgroup);
      if (!g.open) {
        if (g.alive) {
          g.simdgroup = lowest(g, g.alive);
          g.current = &g.simd[g.simdgroup];
          diverged("threadgroup barrier");
        }
        void *unused;
        swap(&unused, g.host_stack);
      }
      g.simdgroup = lowest(g, g.open);
      s = g.current = &g.simd[g.simdgroup];
    }
    uint lane = next(g, *s);
    if (s->fresh >> lane & 1) {
      g.lane = g.simdgroup * 32 + lane;
      continue;
    }
    hop(g, g.simdgroup, lane);
  }
}

static void run_threadgroup(Worker &w) {
  Group &g = w.group;
  g.alive = g.open = all_simdgroups(g);
  g.file = nullptr;
  g.epoch[0] = g.epoch[1] = 0;
  for (uint i = 0; i < g.simdgroups; ++i) {
    Simdgroup &s = g.simd[i];
    s.ready = s.live = s.fresh = ~0u;
    s.held = s.phase = 0;
    s.epoch[0] = s.epoch[1] = 0;
  }
  for (uint lane = 0; lane < g.threads; ++lane) {
    uint stagger = lane * 5 % 32 * 128;  // equal frames of neighbours shall not share a cache set
    g.stack[lane] = fresh_stack(w.stacks + (lane + 1) * STACK_BYTES - 64 - stagger, lane_entry);
  }
  uint first = g.reverse ? g.threads - 1 : 0;
  g.lane = first;
  g.simdgroup = first / 32;
  g.current = &g.simd[g.simdgroup];
  g.running = true;
  swap(&g.host_stack, g.stack[first]);
  g.running = false;
}

static void check_marks(Job &job, Worker &w, uint threads) {
  for (uint lane = 0; lane < threads && !STACK_GUARDS; ++lane) {
    if (w.mark(lane) == STACK_MARK) continue;
    w.mark(lane) = STACK_MARK;
    if (job.failed.exchange(true)) continue;
    job.device->error = std::string("kernel ") + job.launch->kernel->name + ": stack overflow of lane " + std::to_string(lane) +
                        ": local arrays take more than " + std::to_string(STACK_BYTES) + " bytes";
  }
}

// Takes threadgroups until there are none, on this host thread.
void work(Job &job) {
  if (!worker) worker.reset(new Worker);
  Worker &w = *worker;
  Group &g = w.group;
  const Launch &launch = *job.launch;
  const Options &options = job.device->options;
  g.kernel = launch.kernel;
  g.device = job.device;
  g.reverse = options.reverse;
  g.step = options.reverse ? 31 : 1;
  g.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  g.threads = launch.threads;
  g.simdgroups = launch.threads / 32;
  for (uint i = 0; i < launch.count; ++i) g.buffers[i] = launch.views[i].at;
  g.shared = w.shared;
  g.scratch = w.scratch;
  g.stacks = w.stacks;
  g.stacks_bytes = STACKS_BYTES;
  G = &g;
#ifdef LY_CHECKED
  check_launch(g, launch);
#endif
  while (!job.failed) {
    size_t i = job.next++;
    if (i >= job.total) break;
    if (options.reverse) i = job.total - 1 - i;
    g.position = {uint(i % g.grid.x), uint(i / g.grid.x % g.grid.y), uint(i / g.grid.x / g.grid.y)};
    if (options.poison) memset(w.shared, 0xff, launch.kernel->shared);
#ifdef LY_CHECKED
    check_threadgroup(g);
#endif
    w.group.file = nullptr;
    run_threadgroup(w);
    if (!G) {  // a fault came back here
      job.failed = true;
      break;
    }
  }
  G = nullptr;
  check_marks(job, w, launch.threads);
}

static const char *supported() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "the simulator needs a processor with AVX2 and FMA";
#endif
  return nullptr;
}

static Device *open(const Options *options) {
  install_signals();
  Device *device = new Device;
  device->options = *options;
#ifdef LY_CHECKED
  device->options.threads = 1;
  check_open(*device);
#endif
  return device;
}

static void close(Device *device) {
  close_pool(*device);
  close_watchdog(*device);
  free_buffers(*device);
#ifdef LY_CHECKED
  check_close(*device);
#endif
  delete device;
}

static void level(Device *device) { device->level_start = device->launch_number + 1; }

static int run(Device *device, const Launch *launch) {
  device->error.clear();
  ++device->launch_number;
  Job job;
  job.device = device;
  job.launch = launch;
  job.total = size_t(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  if (device->options.timeout_s) watch(*device);
  if (device->options.threads > 1 && job.total > 1) {
    run_on_pool(*device, job);
  } else {
    work(job);
  }
  if (device->options.timeout_s) unwatch(*device);
  return job.failed;
}

static const char *error(Device *device) { return device->error.c_str(); }
}  // namespace ly

extern "C" __attribute__((visibility("default"))) const ly::Api *ly_sim_api() {
#ifdef LY_CHECKED
  constexpr unsigned checked = 1;
#else
  constexpr unsigned checked = 0;
#endif
  static const ly::Api api = {checked,      ly_kernels, ly::supported, ly::open, ly::close, ly::allocate,
                              ly::import, ly::written, ly::level,     ly::run,  ly::error};
  return &api;
}
