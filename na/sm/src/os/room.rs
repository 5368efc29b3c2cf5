//! What the system leaves this process: mappings.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use hg_na::Error;
use hg_na_parts::limits::number_in;

/// Mappings of peers and of this process's own segments.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// One more mapping, for as long as this lives.
#[derive(Debug)]
pub(super) struct Counted(());

impl Counted {
    pub(super) fn new() -> Self {
        // Relaxed: a count that nothing is read by.
        MAPPED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether one more peer leaves this process the mappings that others need in it: a new thread's stack, above all, without
/// which a program ends.
///
/// # Errors
/// [`Error::Limit`].
pub(crate) fn for_a_peer() -> Result<(), Error> {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    let limit = *LIMIT.get_or_init(|| number_in("/proc/sys/vm/max_map_count"));
    // Relaxed: as above.
    leaves_some(MAPPED.load(Ordering::Relaxed), limit)
}

/// Four fifths are for peers. A limit that cannot be read is none.
fn leaves_some(mapped: u64, limit: u64) -> Result<(), Error> {
    if limit == 0 || mapped < limit / 5 * 4 {
        return Ok(());
    }
    Err(Error::Limit {
        what: "mappings of this process for peers, four fifths of all (vm.max_map_count)",
        limit: limit / 5 * 4,
        remedy: "raise it with sysctl, or connect to fewer peers",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_refused_by_name_while_a_fifth_of_all_mappings_is_left() {
        assert!(leaves_some(0, 65_530).is_ok() && leaves_some(52_423, 65_530).is_ok());
        let refused = leaves_some(52_424, 65_530).unwrap_err();
        assert!(matches!(refused, Error::Limit { limit: 52_424, .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("vm.max_map_count") && said.contains("sysctl"), "{said}");
        assert!(leaves_some(1_000_000, 0).is_ok(), "unknown");
    }

    #[test]
    fn what_is_counted_is_counted_for_as_long_as_it_lives() {
        // Others of this process may map meanwhile: a thousand are told from those.
        let before = MAPPED.load(Ordering::Relaxed);
        let counted: Vec<_> = (0..1000).map(|_| Counted::new()).collect();
        assert!(MAPPED.load(Ordering::Relaxed) >= before + 900);
        drop(counted);
        assert!(MAPPED.load(Ordering::Relaxed) < before + 900);
    }
}
