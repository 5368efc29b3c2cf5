//! Fail points: in a build with the feature `fail-points`, `HG_FAIL_POINT=LABEL[:N]` kills the process
//! (SIGKILL) when it passes the step LABEL of the ring's protocol for the N-th time (default 1).
//! Without the feature a fail point is nothing.
//!
//! | label | step |
//! |---|---|
//! | `hello` / `welcome` | before the greeting is sent |
//! | `open` | after the connection opened, before anything else |
//! | `reserve` | after space in the arena was reserved |
//! | `publish` | before the slot's sequence is stored (P3) |
//! | `part` | before each word of a message of several slots |
//! | `published` | after it, before the doorbell is considered (W2) |
//! | `ring` | before the doorbell is rung |
//! | `copied` | after a message was copied out, before it counts as taken |
//! | `write-back` | before the consumer's position is stored (C3) |
//! | `park` | after the intent to sleep was published (S1) |
//! | `pinned` | while a region of a peer is pinned |
//! | `asked` | after a piece was asked for that is copied through the arenas |
//! | `served` | after its owner copied it, before the answer |
//! | `taken` | after its initiator has handled the answer |
//! | `close` | before the goodbye of a connection |

/// Passes a labelled step.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub(crate) fn point(_label: &str) {}

/// Passes a labelled step.
#[cfg(feature = "fail-points")]
pub(crate) fn point(label: &str) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    use nix::sys::signal::{Signal, raise};

    static CHOSEN: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let chosen = CHOSEN.get_or_init(|| {
        let text = std::env::var("HG_FAIL_POINT").ok()?;
        let (label, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((label.to_owned(), count.parse().unwrap_or(1)))
    });
    let Some((chosen, count)) = chosen else { return };
    // Relaxed: a counter, and nothing depends on its order.
    if chosen == label && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count {
        let _ends_the_process = raise(Signal::SIGKILL);
    }
}
