//! Whether AMX's tiles may be used: the processor has them, and the system lets this process.
//!
//! Linux keeps a process's tile registers (8 KiB a thread) only after it has asked once.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// `arch_prctl`: its number, the request for a part of the register state, and the part that tiles are.
const ARCH_PRCTL: isize = 158;
const REQ_XCOMP_PERM: usize = 0x1023;
const TILE_DATA: usize = 18;

/// Asks the processor, then the system; once.
pub(super) fn available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && permitted())
}

/// Leaf 7: bit 24 tiles, bit 25 products of bytes.
fn has_tiles() -> bool {
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx >> 24 & 0b11 == 0b11
}

fn permitted() -> bool {
    let mut result = ARCH_PRCTL;
    // SAFETY: this call changes what the process may use and nothing that it has.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") REQ_XCOMP_PERM, in("rsi") TILE_DATA, out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}
