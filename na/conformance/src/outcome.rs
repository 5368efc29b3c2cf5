//! What a conformance test answers, and the two macros that make it.

/// `Err` says in a sentence what was broken.
pub type Outcome<T = ()> = Result<T, String>;

/// Ends the test with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}

/// Ends the test with a sentence.
macro_rules! fail {
    ($($sentence:tt)+) => {
        return Err(format!($($sentence)+))
    };
}

pub(crate) use {ensure, fail};
