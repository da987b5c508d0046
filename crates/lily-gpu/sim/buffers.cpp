// Buffers that end at a guard page, so that the fast build notices what runs past them.
#include "host.h"
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace ly {
void *allocate(Device *device, const char *name, size_t bytes) {
  size_t page = size_t(sysconf(_SC_PAGESIZE));
  size_t body = (bytes + 15 + page - 1) / page * page;
  size_t whole = body + 2 * page;
  void *memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  unsigned char *map = static_cast<unsigned char *>(memory);
  mprotect(map, page, PROT_NONE);
  mprotect(map + page + body, page, PROT_NONE);
  if (device->options.fresh_poison) memset(map + page, 0xff, body);
  unsigned char *base = map + page + ((body - bytes) & ~size_t(15));  // aligned for the widest vector
  device->buffers.emplace_back(new Buffer{name, base, bytes, map, whole, nullptr});
  return base;
}

void import(Device *device, const char *name, void *at, size_t bytes) {
  device->buffers.emplace_back(new Buffer{name, static_cast<unsigned char *>(at), bytes, nullptr, 0, nullptr});
}

void written(Device *device, const void *at, size_t bytes) {
#ifdef LY_CHECKED
  if (Buffer *buffer = device->find(at)) check_written(*device, *buffer, at, bytes);
#else
  (void)device, (void)at, (void)bytes;
#endif
}

Buffer *Device::find(const void *at) {
  for (auto &buffer : buffers) {
    if (buffer->contains(at)) return buffer.get();
  }
  return nullptr;
}

void free_buffers(Device &device) {
  for (auto &buffer : device.buffers) {
    if (buffer->map) munmap(buffer->map, buffer->map_bytes);
    free(buffer->shadow);
  }
  device.buffers.clear();
}
}  // namespace ly
