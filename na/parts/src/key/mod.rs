//! A pre-shared key, and encryption between two ends that have it (feature `key`).

#[cfg(feature = "key")]
mod cipher;
#[cfg(feature = "key")]
mod psk;
#[cfg(feature = "key")]
mod seal;
#[cfg(not(feature = "key"))]
mod without;

#[cfg(not(feature = "key"))]
pub use without::{Exchange, Key, RECORD_MAX, Seal};
#[cfg(feature = "key")]
pub use {
    psk::Key,
    seal::{Exchange, RECORD_MAX, Seal},
};

/// Setting: file with the pre-shared key.
pub const KEY_FILE: &str = "key-file";
/// Setting: name of the environment variable with the pre-shared key.
pub const KEY_ENV: &str = "key-env";
/// Names under which somebody may try to pass a key itself.
pub(crate) const KEYS: [&str; 4] = ["key", "psk", "secret", "password"];

/// Whether this build can encrypt.
pub const AVAILABLE: bool = cfg!(feature = "key");

/// Said to an end with another key.
pub const DIFFER: &str = "the keys of the two ends differ";
/// Said to an end that wants to seal in a way that is not known here, or says its first word as it was said before there was a choice.
pub const UNKNOWN: &str = "the end that connects wants a cipher that the other does not know";
/// Said to an end that has a key and reaches one that has none.
pub const ONLY_DIALLER: &str = "only the end that connects has a key";
/// Said to an end that has no key and reaches one that has.
pub const ONLY_ACCEPTOR: &str = "only the end that is connected to has a key";
/// Logged once by who listens beyond this machine without a key.
pub const WHOEVER: &str = "whoever reaches this address can call this engine: give both sides a key (feature `tcp-key`, setting `key-file`), or listen at 127.0.0.1";
