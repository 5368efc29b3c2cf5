//! Which instructions this machine has, looked for at run time.

/// Instructions for many numbers at a time. All give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Instructions {
    /// Those that the program was compiled for.
    Portable,
    /// AVX2 of x86-64.
    Avx2,
    /// The same vectors with AVX-512's instructions.
    Avx512,
}

impl Instructions {
    /// The best that this machine has.
    #[must_use]
    pub fn best() -> Self {
        let all = [Self::Avx512, Self::Avx2];
        all.into_iter().find(|it| it.are_here()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has them.
    #[must_use]
    pub fn are_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.are_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// Makes `$name` a function that runs `$body`, which must be `#[inline(always)]`, compiled for given instructions.
macro_rules! compiled_for_each {
    ($vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;
     portable: $portable:expr, avx2: $avx2:expr) => {
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "calls what is compiled for instructions that were looked for")
        )]
        $vis fn $name(instructions: $crate::Instructions, $($argument: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1")]
                fn with_avx2($($argument: $type),*) -> $result {
                    $avx2($($argument),*)
                }
                #[target_feature(enable = "avx2,bmi1,avx512f,avx512bw,avx512vl")]
                fn with_avx512($($argument: $type),*) -> $result {
                    $avx2($($argument),*)
                }
                assert!(instructions.are_here(), "this machine has no {instructions:?}");
                match instructions {
                    $crate::Instructions::Portable => {}
                    $crate::Instructions::Avx2 => {
                        // SAFETY:
                        // - the instructions are there: asserted above.
                        return unsafe { with_avx2($($argument),*) };
                    }
                    $crate::Instructions::Avx512 => {
                        // SAFETY:
                        // - the instructions are there: asserted above.
                        return unsafe { with_avx512($($argument),*) };
                    }
                }
            }
            $portable($($argument),*)
        }
    };
}
pub(crate) use compiled_for_each;
