// The simulator as its host sees it (`struct Api`, a C interface mirrored by src/backend/sim/api.rs), and what the
// parts of the runtime share. Start with run.cpp.
#pragma once
#include "lanes.h"
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace ly {
struct Options {
  unsigned threads;       // of the host, for the threadgroups of one launch; the checked build uses one
  unsigned reverse;       // run lanes and threadgroups from the last to the first
  unsigned poison;        // threadgroup memory starts as NaNs, not as what the last threadgroup left
  unsigned timeout_s;     // of one launch; 0: none
  unsigned fresh_poison;  // buffers start as NaNs that nobody has written, not as zeros
};

struct View {
  void *at;
  size_t bytes;
};

struct Launch {
  const Kernel *kernel;
  const View *views;  // one for each of the kernel's buffers and its argument struct, by index
  unsigned count;
  unsigned grid[3];
  unsigned threads;
};

struct Api {
  unsigned checked;                    // whether this is the checked build
  const Kernel *const *kernels;        // ends with a null pointer
  const char *(*supported)();          // null, or why this machine cannot run it
  Device *(*open)(const Options *);
  void (*close)(Device *);
  void *(*allocate)(Device *, const char *name, size_t bytes);                 // null: no memory
  void (*import)(Device *, const char *name, void *at, size_t bytes);          // memory of the host, never written
  void (*written)(Device *, const void *at, size_t bytes);                     // the host has filled this range
  void (*level)(Device *);                                                     // launches from here on wait for those before
  int (*run)(Device *, const Launch *);                                        // 0, or a fault
  const char *(*error)(Device *);                                              // of the last launch
};

struct Cell;  // shadow of a few bytes: check.cpp
struct Buffer {
  std::string name;
  unsigned char *base;
  size_t bytes;
  unsigned char *map;  // with the guard pages; null where the host owns the memory
  size_t map_bytes;
  Cell *shadow;        // checked build only
  bool contains(const void *at) const {
    const unsigned char *start = map ? map : base;
    return at >= start && at < start + (map ? map_bytes : bytes);
  }
};

struct Pool;
struct Watchdog;
struct Check;
struct Device {
  Options options;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::string error;
  unsigned launch_number = 1, level_start = 2;  // launch 1 stands for the host
  Pool *pool = nullptr;
  Watchdog *watchdog = nullptr;
  Check *check = nullptr;
  Buffer *find(const void *at);
};

// One launch under way, shared by the host threads that take its threadgroups.
struct Job {
  Device *device;
  const Launch *launch;
  size_t total;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
};
void work(Job &job);

// fault.cpp
void install_signals();
std::string place_of(const void *pc);  // "norm.metal:12"
void watch(Device &device);            // starts the time limit of a launch on this thread
void unwatch(Device &device);
void close_watchdog(Device &device);

// pool.cpp
void run_on_pool(Device &device, Job &job);
void close_pool(Device &device);

// buffers.cpp
void *allocate(Device *device, const char *name, size_t bytes);
void import(Device *device, const char *name, void *at, size_t bytes);
void written(Device *device, const void *at, size_t bytes);
void free_buffers(Device &device);

// run.cpp: a worker's lane stacks, for telling an overflow from another fault.
bool on_stack_guard(const void *at);

#ifdef LY_CHECKED
// check.cpp
void check_open(Device &device);
void check_close(Device &device);
void check_launch(Group &group, const Launch &launch);
void check_threadgroup(Group &group);
void check_written(Device &device, Buffer &buffer, const void *at, size_t bytes);
std::string check_last_place();  // where the newest access was
#endif
}  // namespace ly

extern "C" const ly::Kernel *const ly_kernels[];
