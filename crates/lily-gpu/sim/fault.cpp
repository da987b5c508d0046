// Faults: what is said about them, signals of the host that are a kernel's fault, the time limit of a launch.
#include "host.h"
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <ucontext.h>

namespace ly {
// Leaves the threadgroup: `work` sees that there is no group any more. Of several faults the first is kept.
[[noreturn]] static void stop(const std::string &text) {
  static std::mutex &lock = *new std::mutex;
  Group &g = *G;
  {
    std::lock_guard<std::mutex> held(lock);
    if (g.device->error.empty()) g.device->error = text;
  }
  G = nullptr;
  void *unused;
  swap(&unused, g.host_stack);
  __builtin_unreachable();
}

void fault(const char *format, ...) {
  const Group &g = *G;
  char what[512], text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  snprintf(text, sizeof text, "kernel %s, threadgroup (%u,%u,%u), lane %u: %s", g.kernel->name, g.position.x, g.position.y, g.position.z,
           g.lane, what);
  stop(text);
}

static std::string describe(const Group &g, const Simdgroup &s, uint lane) {
  uint bit = 1u << lane, id = g.simdgroup * 32 + lane;
  if (!(s.live & bit)) return "returned";
  if (s.fresh & bit) return "not started";
  if (s.ready & bit && id != g.lane) return "still running";
  const Site &site = g.site[id];
  return std::string(s.held & bit ? "at the barrier " : "at ") + (site.file ? site.file : "?") + ":" + std::to_string(site.line);
}

// Says where every lane of the simdgroup is.
void diverged(const char *what) {
  const Group &g = *G;
  const Simdgroup &s = *g.current;
  std::string text = "kernel " + std::string(g.kernel->name) + ": divergent " + what + ":";
  for (uint first = 0; first < 32;) {
    std::string state = describe(g, s, first);
    uint end = first;
    while (end < 32 && describe(g, s, end) == state) ++end;
    uint base = g.simdgroup * 32;
    text += " lanes " + std::to_string(base + first) + "-" + std::to_string(base + end - 1) + " " + state + ";";
    first = end;
  }
  if (g.file) text += std::string(" others wait at the barrier ") + g.file + ":" + std::to_string(g.line);
  stop(text);
}

// The frames that lie in a kernel source, the innermost first. Only with debug information: in the checked build.
std::string place_of(const void *pc) {
  Dl_info object;
  if (!dladdr(pc, &object)) return "?";
  size_t offset = size_t(static_cast<const char *>(pc) - 1 - static_cast<const char *>(object.dli_fbase));
  char command[1024];
#ifdef __APPLE__
  size_t address = size_t(pc) - 1;
  snprintf(command, sizeof command, "atos -i -o '%s' -l %p 0x%zx 2>/dev/null", object.dli_fname, object.dli_fbase, address);
  (void)offset;
#else
  snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", object.dli_fname, offset);
#endif
  std::string places;
  FILE *lines = popen(command, "r");
  if (!lines) return "?";
  char line[512];
  while (fgets(line, sizeof line, lines)) {
    std::string place = line;
    if (place.find("/sim/") != std::string::npos || place.find("/dialect/") != std::string::npos) continue;
    if (place.find(".metal:") == std::string::npos && place.find("/lib/") == std::string::npos) continue;
    place = place.substr(place.find_last_of("/(") + 1);
    place = place.substr(0, place.find_first_of(" )\n"));
    places += places.empty() ? place : ", inlined at " + place;
  }
  pclose(lines);
  return places.empty() ? "?" : places;
}

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
constexpr int TIMEOUT_SIGNAL = SIGURG;  // ignored by default, so that a late one is harmless
static struct sigaction previous[64];

static const void *pc_of(void *context) {
#if defined(__x86_64__) && defined(__linux__)
  return reinterpret_cast<char *>(static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__) && defined(__linux__)
  return reinterpret_cast<char *>(static_cast<ucontext_t *>(context)->uc_mcontext.pc) + 1;
#else
  (void)context;
  return nullptr;
#endif
}

// A signal that is no kernel's of this library: perhaps of another one, with a handler of its own.
static void pass_on(int number, siginfo_t *info, void *context) {
  const struct sigaction &before = previous[number];
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else if (number != TIMEOUT_SIGNAL) {
    sigaction(number, &before, nullptr);  // what faulted does so again, as if we were not here
  }
}

static void on_signal(int number, siginfo_t *info, void *context) {
  if (!G || !G->running) return pass_on(number, info, context);
#ifdef LY_CHECKED
  if (number == TIMEOUT_SIGNAL) fault("still running after %u s, near %s", G->device->options.timeout_s, check_last_place().c_str());
#endif
  if (number == TIMEOUT_SIGNAL) fault("still running after %u s", G->device->options.timeout_s);
  const void *pc = pc_of(context);
  std::string place = pc ? place_of(pc) : "?";
  if (on_stack_guard(info->si_addr)) fault("stack overflow");
  if (Buffer *buffer = G->device->find(info->si_addr)) {
    ptrdiff_t byte = static_cast<unsigned char *>(info->si_addr) - buffer->base;
    fault("%s: access at byte %td of buffer %s (%zu bytes)", place.c_str(), byte, buffer->name.c_str(), buffer->bytes);
  }
  fault("%s: signal %d at address %p", place.c_str(), number, info->si_addr);
}

void install_signals() {
  static bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int number : SIGNALS) sigaction(number, &action, &previous[number]);
    sigaction(TIMEOUT_SIGNAL, &action, &previous[TIMEOUT_SIGNAL]);
    return true;
  }();
  (void)once;
}

// Sends signals to the thread that has run one launch for too long.
struct Watchdog {
  std::mutex lock;
  std::condition_variable changed;
  bool stop = false, armed = false;
  unsigned round = 0, seconds;
  pthread_t watched;
  std::thread thread;

  explicit Watchdog(unsigned limit) : seconds(limit), thread([this] { serve(); }) {}
  ~Watchdog() {
    set(false, true);
    thread.join();
  }
  void set(bool arm, bool end = false) {
    std::lock_guard<std::mutex> held(lock);
    armed = arm;
    stop = end;
    ++round;
    if (arm) watched = pthread_self();
    changed.notify_one();
  }
  void serve() {
    std::unique_lock<std::mutex> held(lock);
    while (!stop) {
      unsigned seen = round;
      auto moved = [&] { return round != seen; };
      if (!armed) {
        changed.wait(held, moved);
      } else if (!changed.wait_for(held, std::chrono::seconds(seconds), moved)) {
        pthread_kill(watched, TIMEOUT_SIGNAL);  // and again, if the thread was not in the kernel just then
      }
    }
  }
};

void watch(Device &device) {
  if (!device.watchdog) device.watchdog = new Watchdog(device.options.timeout_s);
  device.watchdog->set(true);
}
void unwatch(Device &device) { device.watchdog->set(false); }
void close_watchdog(Device &device) { delete device.watchdog; }
}  // namespace ly
