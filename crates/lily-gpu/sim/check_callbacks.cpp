// The functions that `-fsanitize=thread` and `-fsanitize=bounds,...` make kernels call. No sanitizer library is linked:
// these report to the simulator's own checks.
#include "check.h"

using ly::fault;

#define LY_PC __builtin_return_address(0)

static void load(const void *at, size_t bytes, const void *pc) { ly::touch({at, bytes, false, true, false, false, {pc, nullptr, 0}}); }
static void store(const void *at, size_t bytes, const void *pc) { ly::touch({at, bytes, true, false, false, false, {pc, nullptr, 0}}); }
static void span(const void *at, size_t bytes, bool write, const void *pc) {
  for (size_t i = 0; i < bytes; ++i) write ? store(static_cast<const char *>(at) + i, 1, pc) : load(static_cast<const char *>(at) + i, 1, pc);
}

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
#define LY_ACCESS(n)                                                 \
  void __tsan_read##n(void *at) { load(at, n, LY_PC); }              \
  void __tsan_write##n(void *at) { store(at, n, LY_PC); }            \
  void __tsan_unaligned_read##n(void *at) { load(at, n, LY_PC); }    \
  void __tsan_unaligned_write##n(void *at) { store(at, n, LY_PC); }  \
  void __tsan_volatile_read##n(void *at) { load(at, n, LY_PC); }     \
  void __tsan_volatile_write##n(void *at) { store(at, n, LY_PC); }   \
  void __tsan_read_write##n(void *at) {                              \
    load(at, n, LY_PC);                                              \
    store(at, n, LY_PC);                                             \
  }
LY_ACCESS(1)
LY_ACCESS(2)
LY_ACCESS(4)
LY_ACCESS(8)
LY_ACCESS(16)
void __tsan_read_range(void *at, size_t bytes) { span(at, bytes, false, LY_PC); }
void __tsan_write_range(void *at, size_t bytes) { span(at, bytes, true, LY_PC); }
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
  span(from, bytes, false, LY_PC);
  span(to, bytes, true, LY_PC);
  return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
  span(from, bytes, false, LY_PC);
  span(to, bytes, true, LY_PC);
  return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
  span(to, bytes, true, LY_PC);
  return memset(to, value, bytes);
}

// Every handler's data starts with the place in the source.
struct Spot {
  const char *file;
  uint line, column;
};
#define LY_UNDEFINED(name, text)                                     \
  void __ubsan_handle_##name##_abort(Spot *spot) {                   \
    const char *slash = strrchr(spot->file, '/');                    \
    fault("%s:%u: %s", slash ? slash + 1 : spot->file, spot->line, text); \
  }
LY_UNDEFINED(out_of_bounds, "array index out of range")
LY_UNDEFINED(shift_out_of_bounds, "shift by more than the width")
LY_UNDEFINED(divrem_overflow, "division by zero or overflow")
LY_UNDEFINED(float_cast_overflow, "float does not fit the integer type")
LY_UNDEFINED(type_mismatch_v1, "null or misaligned pointer")
LY_UNDEFINED(add_overflow, "signed overflow")
LY_UNDEFINED(sub_overflow, "signed overflow")
LY_UNDEFINED(mul_overflow, "signed overflow")
LY_UNDEFINED(negate_overflow, "signed overflow")
LY_UNDEFINED(pointer_overflow, "pointer overflow")
LY_UNDEFINED(missing_return, "no return value")
LY_UNDEFINED(builtin_unreachable, "unreachable code")
LY_UNDEFINED(nonnull_arg, "null argument")
}
