//! The processor's treatment of subnormal numbers in a thread.

/// Sets the treatment of subnormal numbers in this thread, until it is dropped. Kernels run in between, and the few lines of the
/// runtime that compute with floats (reductions between ranks, ops of the interpreter), whose results may flush, too. It is set for
/// a whole run: changing the mode takes a processor as long as a small kernel.
#[derive(Debug)]
pub(crate) struct Subnormals {
    /// The control register before, where it changed.
    before: Option<Control>,
}

impl Subnormals {
    /// Leaves the mode of the thread.
    pub fn keep() -> Self {
        Self { before: None }
    }

    /// Subnormal numbers are read and written as zeros. On a processor without such a mode they are kept.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(clippy::bad_bit_mask, reason = "there are no bits of such a mode")
    )]
    pub fn flush() -> Self {
        let before = read();
        if before & FLUSH == FLUSH {
            return Self::keep();
        }
        write(before | FLUSH);
        Self { before: Some(before) }
    }
}

impl Drop for Subnormals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            write(before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    /// The register MXCSR.
    pub type Control = u32;

    /// Its bits FTZ (results) and DAZ (operands).
    pub const FLUSH: Control = 1 << 15 | 1 << 6;

    #[inline]
    pub fn read() -> Control {
        let mut value = 0u32;
        // SAFETY: the instruction writes the register to `value` and has no other effect.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack, preserves_flags)) };
        value
    }

    #[inline]
    pub fn write(value: Control) {
        // SAFETY: `value` was read from the register, but for the bits of `FLUSH`, so no reserved bit is set. It is restored when the guard ends.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    /// The register FPCR.
    pub type Control = u64;

    /// Its bit FZ (operands and results).
    pub const FLUSH: Control = 1 << 24;

    #[inline]
    pub fn read() -> Control {
        let value: u64;
        // SAFETY: the instruction reads the register and has no other effect.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }

    #[inline]
    pub fn write(value: Control) {
        // SAFETY: `value` was read from the register, but for the bit `FLUSH`. It is restored when the guard ends.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) value, options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    /// No control register is known.
    pub type Control = u32;

    pub const FLUSH: Control = 0;

    pub fn read() -> Control {
        0
    }

    pub fn write(_: Control) {}
}

use control::{Control, FLUSH, read, write};
