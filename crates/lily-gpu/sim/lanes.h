// How the simulator runs a threadgroup: one lane is one fiber of the host thread. A lane runs until it parks at an
// exchange of its simdgroup (`arrive`) or at a threadgroup barrier (`barrier`). The last lane to arrive does the work of
// an exchange once, for all, and runs on. A lane that returns hands its stack to a lane that has not started, so a
// kernel without exchanges is a plain loop.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#define LY_FN inline __attribute__((always_inline))
#include "dialect/vectors.h"
#include "switch.h"

#ifdef LY_CHECKED  // kernels report their loads and stores; the runtime's own are not reported
#define LY_RUNTIME inline __attribute__((no_sanitize("thread"), no_sanitize("undefined"), noinline))
#define LY_REDZONE(n) alignas(16) char ly_redzone##n[16];
#define LY_THREADGROUP_BYTES(n) 0  // redzones are not the kernel's; the fast build counts without them
#else
#define LY_RUNTIME inline __attribute__((always_inline))
#define LY_REDZONE(n)
#define LY_THREADGROUP_BYTES(n) (n)
#endif
// Where the kernel calls a word of the dialect.
#define LY_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define LY_PASS file, line

namespace ly {
constexpr uint LANES_MAX = 1024;
constexpr uint BUFFERS_MAX = 31;
// Bytes that one lane can put into an exchange.
constexpr uint BOX_BYTES = 16;
constexpr size_t SCRATCH_BYTES = 1 << 20;

struct Simdgroup {
  uint ready;   // lanes that can run now, the running one included
  uint live;    // lanes that have not returned
  uint held;    // lanes parked at a threadgroup barrier
  uint fresh;   // lanes that have not started
  uint phase;   // which mailbox the next exchange uses: of two, so that a fast lane cannot overwrite a slow one's
  const char *file;  // the exchange that the parked lanes wait in
  int line;
  uint epoch[2];  // simdgroup barriers passed that order device, threadgroup memory: for the race check
  alignas(64) unsigned char box[2][32 * BOX_BYTES];
};

// A grid position; converts to whichever type the kernel declares.
struct Position {
  uint x, y, z;
  operator uint() const { return x; }
  operator uint2() const { return uint2(x, y); }
  operator uint3() const { return uint3(x, y, z); }
};

struct Site {
  const char *file;
  int line;
};
struct Kernel;
struct Device;

// One threadgroup in flight: one per host thread, used again and again.
struct Group {
  void *stack[LANES_MAX];  // of parked lanes
  Site site[LANES_MAX];    // where each lane parked last, for messages
  Simdgroup simd[LANES_MAX / 32];
  Simdgroup *current;
  uint lane, simdgroup;  // the running lane
  uint open;             // simdgroups not yet wholly at the threadgroup barrier
  uint alive;            // simdgroups that have not returned
  uint simdgroups;
  const char *file;  // the threadgroup barrier in progress
  int line;
  uint epoch[2];  // threadgroup barriers passed that order device, threadgroup memory
  bool reverse;   // run the highest lane that is ready, not the lowest
  uint step;      // to the next neighbour
  bool running;   // between the host's switch to the first lane and the switch back
  Position position, grid;
  uint threads;
  void *buffers[BUFFERS_MAX];
  unsigned char *shared;
  unsigned char *scratch;  // SCRATCH_BYTES for what one exchange works out: lanes' stacks are small
  void *host_stack;
  unsigned char *stacks;  // all lanes' stacks
  size_t stacks_bytes;
  const Kernel *kernel;
  Device *device;
};

// A buffer argument, and an argument struct.
struct Ptr {
  void *pointer;
  template <class T> operator T *() const { return static_cast<T *>(pointer); }
};
struct Ref {
  void *pointer;
  template <class T> operator const T &() const { return *static_cast<const T *>(pointer); }
};

// A kernel's table, written by the translator.
struct Extent {  // one threadgroup array
  const char *name;
  size_t offset, bytes;
};
struct Param {
  const char *name;
  int index;
  char access;   // r: read, w: written, a: argument struct
  size_t bytes;  // of an argument struct
};
struct Kernel {
  const char *name;
  void (*lane)(Group &);
  size_t shared;
  const Extent *extents;
  const Param *params;
  int extents_count, params_count;
};

// Initial-exec where there is such a thing: the group is looked up at every exchange.
#ifdef __linux__
extern __thread Group *G __attribute__((tls_model("initial-exec")));
#else
extern __thread Group *G;
#endif
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void diverged(const char *what);

template <class T> LY_RUNTIME T *shared_memory() { return reinterpret_cast<T *>(G->shared); }
LY_RUNTIME uint lane() { return G->lane & 31; }
LY_RUNTIME uint lowest(const Group &g, uint mask) {
  return g.reverse ? 31u - uint(__builtin_clz(mask)) : uint(__builtin_ctz(mask));
}
// The neighbour if it can run: a branch to guess, not a chain of loads.
LY_RUNTIME uint next(const Group &g, const Simdgroup &s) {
  uint neighbour = (g.lane + g.step) & 31;
  return __builtin_expect(s.ready >> neighbour & 1, 1) ? neighbour : lowest(g, s.ready);
}
// Parks this lane and runs that one.
LY_RUNTIME void hop(Group &g, uint simdgroup, uint lane) {
  void **save = &g.stack[g.lane];
  g.lane = simdgroup * 32 + lane;
  ly::swap(save, g.stack[g.lane]);
}

// Comes to an exchange. True for the lane that arrives last, while all others are still parked.
LY_RUNTIME bool arrive(const char *file, int line) {
  Group &g = *G;
  Simdgroup &s = *g.current;
  uint bit = 1u << (g.lane & 31);
  if (s.ready == s.live) {
    s.file = file;
    s.line = line;
  } else if (s.line != line || s.file != file) {
    g.site[g.lane] = {file, line};
    diverged("simdgroup operation");
  }
  s.ready &= ~bit;
  g.site[g.lane] = {file, line};
  if (s.ready) {
    hop(g, g.simdgroup, next(g, s));
    return false;
  }
  if (s.held || s.live != ~0u) diverged("simdgroup operation");
  s.ready = s.live;
  s.phase ^= 1;
  return true;
}

// Every lane puts a value in, the last one runs `finish` over the 32 values, all read the mailbox after.
template <class T, class F> LY_RUNTIME const T *exchange(T value, F finish, const char *file, int line) {
  static_assert(sizeof(T) <= BOX_BYTES, "too wide for an exchange");
  Simdgroup &s = *G->current;
  T *box = reinterpret_cast<T *>(s.box[s.phase]);
  box[lane()] = value;
  if (arrive(file, line)) finish(box);
  return box;
}

template <uint WIDTH, class T, class F> LY_RUNTIME void halve(T *box, F combine) {
  for (uint i = 0; i < WIDTH; ++i) box[i] = combine(box[i], box[i + WIDTH]);
}
// A fixed tree: the same bits in every run.
template <class T, class F> LY_RUNTIME T reduce(T value, F combine, const char *file, int line) {
  auto tree = [&](T *box) {
    halve<16>(box, combine);
    halve<8>(box, combine);
    halve<4>(box, combine);
    halve<2>(box, combine);
    halve<1>(box, combine);
  };
  return exchange(value, tree, file, line)[0];
}
template <class T> LY_RUNTIME T pick(T value, uint from, const char *file, int line) {
#ifdef LY_CHECKED
  if (from > 31) fault("%s:%d: shuffle from lane %u", file, line, from);
#endif
  return exchange(value, [](T *) {}, file, line)[from & 31];
}

LY_RUNTIME uint all_simdgroups(const Group &g) { return ~0u >> (32 - g.simdgroups); }

LY_RUNTIME void barrier(uint flags, const char *file, int line) {
  Group &g = *G;
  Simdgroup &s = *g.current;
  uint bit = 1u << (g.lane & 31);
  g.site[g.lane] = {file, line};
  if (!g.file) {
    g.file = file;
    g.line = line;
  } else if (g.line != line || g.file != file) {
    diverged("threadgroup barrier");
  }
  s.ready &= ~bit;
  s.held |= bit;
  if (s.ready) return hop(g, g.simdgroup, next(g, s));
  if (s.held != ~0u) diverged("threadgroup barrier");
  g.open &= ~(1u << g.simdgroup);
  if (g.open) {
    g.simdgroup = lowest(g, g.open);
    g.current = &g.simd[g.simdgroup];
    return hop(g, g.simdgroup, lowest(g, g.current->ready));
  }
  if (g.alive != all_simdgroups(g)) diverged("threadgroup barrier");
  for (uint i = 0; i < g.simdgroups; ++i) {
    g.simd[i].ready = g.simd[i].live;
    g.simd[i].held = 0;
  }
  g.open = g.alive;
  g.file = nullptr;
  g.epoch[0] += flags & 1;
  g.epoch[1] += flags >> 1 & 1;
}

#ifdef LY_CHECKED
// What the runtime does for a lane, or for its whole simdgroup, reported as the kernel's own.
void touch_atomic(const void *at, bool write, bool read, const char *file, int line);
void touch_simdgroup(const void *at, size_t bytes, bool write, const char *file, int line);
void copy_queue(void *to, const void *from, const char *file, int line);
void copy_commit();
void copy_wait(uint batches);
#endif
}  // namespace ly
