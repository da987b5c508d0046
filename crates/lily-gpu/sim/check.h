// What the parts of the checked build share: one access as the compiler's callbacks report it.
#pragma once
#include "host.h"

namespace ly {
// Where an access is: an instruction, or a line if the runtime makes it for the kernel.
struct Source {
  const void *pc = nullptr;
  const char *file = nullptr;
  int line = 0;
  std::string place() const { return file ? file + (":" + std::to_string(line)) : place_of(pc); }
};

struct Touch {
  const void *at;
  size_t bytes;
  bool write, read;  // both: a read-modify-write
  bool atomic;
  bool simdgroup;    // by the simdgroup as a whole
  Source source;
  const char *verb() const { return atomic ? "atomic on" : write ? "write to" : "read of"; }
};

void touch(const Touch &touch);
}  // namespace ly
