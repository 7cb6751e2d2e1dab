//! Functions compiled for wider vectors than all processors of an architecture have.

/// Defines a function that is compiled for AVX2, too, and uses that where the processor has it. What it calls must be inlined to be compiled
/// so.
macro_rules! vectorized {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            fn any($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) {
                    any($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has what the function is compiled for.
                    unsafe { avx2($($argument),*) };
                    return;
                }
            }
            any($($argument),*);
        }
    };
}

pub(crate) use vectorized;
