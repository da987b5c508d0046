// The context switch: lanes are fibers that park by saving what is live and jumping to where another one parked.
#pragma once

namespace ly {
#if defined(__x86_64__)
// Inlined, so that the compiler spills only what is live around it. The first `lea` steps over the red zone. A parked
// stack holds, from its top: where to go on, rbx, rbp.
inline __attribute__((always_inline)) void swap(void **save, void *load) {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n push %%rbp\n push %%rbx\n lea 1f(%%rip), %%rax\n push %%rax\n"
      "mov %%rsp, (%0)\n mov %1, %%rsp\n pop %%rax\n jmp *%%rax\n"
      "1: pop %%rbx\n pop %%rbp\n lea 128(%%rsp), %%rsp\n"
      : "+D"(save), "+S"(load)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
        "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

// The parked stack of a lane that has not started: `entry` finds the stack as if it had been called.
inline void *fresh_stack(unsigned char *top, void (*entry)()) {
  void **stack = reinterpret_cast<void **>(top) - 2;
  stack[0] = reinterpret_cast<void *>(entry);
  return stack;
}
#elif defined(__aarch64__)
// Saves the callee-saved registers on this stack and takes those parked on the other (switch_aarch64.cpp).
extern "C" void ly_switch(void **save, void *load);
inline void swap(void **save, void *load) { ly_switch(save, load); }

inline void *fresh_stack(unsigned char *top, void (*entry)()) {
  void **stack = reinterpret_cast<void **>(top) - 20;
  stack[11] = reinterpret_cast<void *>(entry);  // x30
  return stack;
}
#else
#error "the simulator runs on x86-64 and on aarch64"
#endif
}  // namespace ly
