// The checked build's shadow memory: who touched what, and whether a barrier, a level or the end of a launch lies
// between two accesses to the same bytes. Start with `touch`, which hears of every load and store of a kernel.
#include "check.h"
#include <cstdlib>
#include <dlfcn.h>

namespace ly {
struct Access {
  uint launch;  // 0: none yet; 1: the host
  uint group;   // counts threadgroups
  ushort lane, epoch, simd_epoch;
  uchar atomic;
  uchar many;  // 1: several lanes of a simdgroup in this epoch, 2: of several simdgroups
};
struct Cell {
  Access write, read;
};
constexpr uint HOST = 1;
// Shadow cells cover one byte of threadgroup memory, two of a buffer.
constexpr size_t BUFFER_STEP = 2;
constexpr size_t SHADOWED_SHARED = (227 << 10) + (4 << 10);

// Memory that the launch may touch.
struct Range {
  const char *name;
  unsigned char *low, *high;
  Buffer *buffer;  // null: threadgroup memory, or an argument struct
  bool threadgroup, writable;
  ptrdiff_t byte(const void *at) const { return static_cast<const unsigned char *>(at) - low; }
  ptrdiff_t size() const { return high - low; }
};

struct Copy {
  unsigned char *to;
  const unsigned char *from;
  Source source;
  uint batch;
};
struct LaneCopies {
  std::vector<Copy> copies;
  uint batch = 0;
};

struct Check {
  std::vector<Range> ranges;
  Range *last_range = nullptr;
  std::vector<const char *> kernels;  // by launch, for messages about an earlier one
  Cell shared[SHADOWED_SHARED] = {};
  uint group = 0;
  Source last;
  LaneCopies copies[LANES_MAX];
  bool any_copies = false;
  uintptr_t constants_page = 0;  // of the kernels' own tables, found last
};

void check_open(Device &device) {
  device.check = new Check;
  device.check->kernels = {"none", "host"};
}
void check_close(Device &device) { delete device.check; }
std::string check_last_place() { return G->device->check->last.place(); }

static void need_shadow(Buffer &buffer) {
  if (!buffer.shadow) buffer.shadow = static_cast<Cell *>(calloc(buffer.bytes / BUFFER_STEP + 1, sizeof(Cell)));
}

void check_launch(Group &group, const Launch &launch) {
  Device &device = *group.device;
  Check &check = *device.check;
  const Kernel &kernel = *launch.kernel;
  check.ranges.clear();
  check.last_range = nullptr;
  check.kernels.resize(device.launch_number, "?");
  check.kernels.push_back(kernel.name);
  for (int i = 0; i < kernel.extents_count; ++i) {
    unsigned char *low = group.shared + kernel.extents[i].offset;
    check.ranges.push_back({kernel.extents[i].name, low, low + kernel.extents[i].bytes, nullptr, true, true});
  }
  for (int i = 0; i < kernel.params_count; ++i) {
    const Param &param = kernel.params[i];
    const View &view = launch.views[param.index];
    unsigned char *low = static_cast<unsigned char *>(view.at);
    Buffer *buffer = param.access == 'a' ? nullptr : device.find(low);
    if (buffer && buffer->map) need_shadow(*buffer);
    check.ranges.push_back({param.name, low, low + view.bytes, buffer, false, param.access == 'w'});
  }
}

void check_threadgroup(Group &group) {
  Check &check = *group.device->check;
  ++check.group;
  if (!check.any_copies) return;
  for (uint lane = 0; lane < LANES_MAX; ++lane) check.copies[lane] = {};
  check.any_copies = false;
}

void check_written(Device &device, Buffer &buffer, const void *at, size_t bytes) {
  if (!device.options.fresh_poison || !buffer.map) return;
  need_shadow(buffer);
  size_t first = size_t(static_cast<const unsigned char *>(at) - buffer.base);
  for (size_t cell = first / BUFFER_STEP; cell <= (first + bytes - 1) / BUFFER_STEP && bytes; ++cell) {
    buffer.shadow[cell] = {};
    buffer.shadow[cell].write.launch = HOST;
  }
}

// Whether `past` happened before what runs now, on memory of the kind `memory`: 0 device, 1 threadgroup.
static bool ordered(const Access &past, const Touch &touch, int memory) {
  const Group &g = *G;
  if (past.launch != g.device->launch_number) return past.launch < g.device->level_start;
  if (past.group != g.device->check->group) return false;
  if (!touch.simdgroup && !past.many && past.lane == g.lane) return true;
  if (past.epoch != ushort(g.epoch[memory])) return true;
  return past.many < 2 && past.lane / 32 == g.simdgroup && past.simd_epoch != ushort(g.current->epoch[memory]);
}

// Keeps the access; a read beside another that it is not ordered after is kept as a read by many.
static void note(Access &kept, const Touch &touch, int memory) {
  const Group &g = *G;
  Access now = {g.device->launch_number, g.device->check->group, ushort(g.lane), ushort(g.epoch[memory]),
                ushort(g.current->epoch[memory]), touch.atomic, touch.simdgroup};
  bool same_epoch = kept.launch == now.launch && kept.group == now.group && kept.epoch == now.epoch;
  if (!touch.write && same_epoch && !ordered(kept, touch, memory)) {
    now.many = kept.many == 2 || kept.lane / 32 != g.simdgroup ? 2 : 1;
    now.atomic &= kept.atomic;
  }
  kept = now;
}

// The kernels' own constant tables lie in this library.
static bool is_constant(Check &check, const void *at) {
  constexpr uintptr_t PAGE = 4096;
  uintptr_t page = reinterpret_cast<uintptr_t>(at) / PAGE;
  if (page == check.constants_page) return true;
  Dl_info here, there;
  bool own = dladdr(reinterpret_cast<void *>(&check_open), &here) && dladdr(at, &there) && here.dli_fbase == there.dli_fbase;
  if (own) check.constants_page = page;
  return own;
}

static Range *find_range(Check &check, const unsigned char *at) {
  Range *last = check.last_range;
  if (last && at >= last->low && at < last->high) return last;
  for (Range &range : check.ranges) {
    if (at >= range.low && at < range.high) return check.last_range = &range;
  }
  return nullptr;
}

[[noreturn]] static void stray(const Check &check, const Touch &touch) {
  const unsigned char *at = static_cast<const unsigned char *>(touch.at);
  const Range *nearest = nullptr;
  ptrdiff_t best = 1 << 20;
  for (const Range &range : check.ranges) {
    ptrdiff_t distance = at < range.low ? range.low - at : at - range.high;
    if (distance < best) {
      best = distance;
      nearest = &range;
    }
  }
  std::string place = touch.source.place();
  if (!nearest) fault("%s: %s memory that is not bound (%p)", place.c_str(), touch.verb(), touch.at);
  fault("%s: %s byte %td of %s, which has %td bytes", place.c_str(), touch.verb(), nearest->byte(at), nearest->name, nearest->size());
}

[[noreturn]] static void race(const Range &range, const Touch &touch, const Access &past, const char *was) {
  const Device &device = *G->device;
  std::string place = touch.source.place();
  ptrdiff_t byte = range.byte(touch.at);
  if (past.launch != device.launch_number) {
    fault("%s: %s %s: not ordered after the %s by kernel %s in the same level", place.c_str(), touch.verb(), range.name, was,
          device.check->kernels[past.launch]);
  }
  if (past.group != device.check->group) {
    fault("%s: %s %s at byte %td races with a %s by another threadgroup", place.c_str(), touch.verb(), range.name, byte, was);
  }
  fault("%s: %s %s at byte %td races with a %s by lane %u (no barrier between)", place.c_str(), touch.verb(), range.name, byte, was,
        past.lane);
}

static void check_cell(Cell &cell, const Range &range, const Touch &touch, int memory, bool fresh_is_set) {
  uint group = G->device->check->group;
  if (range.threadgroup && cell.write.group != group) cell.write = {};
  if (range.threadgroup && cell.read.group != group) cell.read = {};
  if (touch.read && !cell.write.launch && !fresh_is_set) {
    fault("%s: %s %s at byte %td, which nothing has written", touch.source.place().c_str(), touch.verb(), range.name, range.byte(touch.at));
  }
  for (const Access *past : {&cell.write, touch.write ? &cell.read : &cell.write}) {
    if (!past->launch || (past->atomic && touch.atomic) || ordered(*past, touch, memory)) continue;
    race(range, touch, *past, past == &cell.read ? "read" : "write");
  }
  note(touch.write ? cell.write : cell.read, touch, memory);
}

void touch(const Touch &touch) {
  if (!G || !G->running) return;
  const Group &g = *G;
  const unsigned char *at = static_cast<const unsigned char *>(touch.at);
  if (at >= g.stacks && at < g.stacks + g.stacks_bytes) return;  // a lane's own variables
  if (at >= reinterpret_cast<const unsigned char *>(&g) && at < reinterpret_cast<const unsigned char *>(&g + 1)) return;  // mailboxes
  Check &check = *g.device->check;
  check.last = touch.source;
  const Range *range = find_range(check, at);
  if (!range) {
    if (!touch.write && is_constant(check, at)) return;
    stray(check, touch);
  }
  if (at + touch.bytes > range->high) {
    fault("%s: %s bytes %td..%td of %s, which has %td bytes", touch.source.place().c_str(), touch.verb(), range->byte(at),
          range->byte(at + touch.bytes), range->name, range->size());
  }
  if (reinterpret_cast<uintptr_t>(at) % touch.bytes) {
    fault("%s: misaligned %zu-byte %s %s", touch.source.place().c_str(), touch.bytes, touch.verb(), range->name);
  }
  if (touch.write && !range->writable) {
    fault("%s: write to %s, which is bound read-only", touch.source.place().c_str(), range->name);
  }
  if (range->threadgroup) {
    Cell *cells = check.shared + (at - g.shared);
    for (size_t i = 0; i < touch.bytes; ++i) check_cell(cells[i], *range, touch, 1, false);
  } else if (range->buffer && range->buffer->shadow) {
    Cell *cells = range->buffer->shadow + (at - range->buffer->base) / BUFFER_STEP;
    bool fresh_is_set = !g.device->options.fresh_poison;
    for (size_t i = 0; i < (touch.bytes + BUFFER_STEP - 1) / BUFFER_STEP; ++i) check_cell(cells[i], *range, touch, 0, fresh_is_set);
  }
}

void touch_atomic(const void *at, bool write, bool read, const char *file, int line) {
  touch({at, sizeof(uint), write, read, true, false, {nullptr, file, line}});
}

void touch_simdgroup(const void *at, size_t bytes, bool write, const char *file, int line) {
  for (size_t done = 0; done < bytes; done += 16) {
    touch({static_cast<const char *>(at) + done, 16, write, !write, false, true, {nullptr, file, line}});
  }
}

// A copy that nobody waits for never arrives: until then its target holds NaNs.
void copy_queue(void *to, const void *from, const char *file, int line) {
  Check &check = *G->device->check;
  LaneCopies &mine = check.copies[G->lane];
  Copy copy = {static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from), {nullptr, file, line}, mine.batch};
  touch({from, 16, false, true, false, false, copy.source});
  touch({to, 16, true, false, false, false, copy.source});
  memset(to, 0xff, 16);
  mine.copies.push_back(copy);
  check.any_copies = true;
}

void copy_commit() { ++G->device->check->copies[G->lane].batch; }

void copy_wait(uint batches) {
  LaneCopies &mine = G->device->check->copies[G->lane];
  std::vector<Copy> left;
  for (const Copy &copy : mine.copies) {
    if (copy.batch + batches >= mine.batch) {
      left.push_back(copy);
      continue;
    }
    touch({copy.from, 16, false, true, false, false, copy.source});
    touch({copy.to, 16, true, false, false, false, copy.source});
    memcpy(copy.to, copy.from, 16);
  }
  mine.copies.swap(left);
}
}  // namespace ly
