//! What both can do.

use hg_na::{Caps, CheckedBy, PutOrdering, Sleep};

/// The least of both, so that what is promised holds whichever way a peer is reached.
///
/// Two exceptions: memory can be viewed when the way to its owner can ([`hg_na::Context::views`]; on the other it
/// fails with `Unsupported`: get it instead), and a silence is noticed as late as the slower one notices it.
/// A context sleeps where both have a descriptor and the local plugin's waiter can watch the network's; in the network's steps
/// where that one sleeps in steps, and its waiter can watch the local plugin's descriptor; otherwise it must be polled.
pub(crate) fn both(local: &Caps, network: &Caps) -> Caps {
    let mut caps = Caps::minimal();
    caps.max_unexpected = local.max_unexpected.min(network.max_unexpected);
    caps.max_expected = local.max_expected.min(network.max_expected);
    caps.max_control = local.max_control.min(network.max_control);
    caps.short_unexpected = local.short_unexpected.min(network.short_unexpected);
    caps.short_expected = local.short_expected.min(network.short_expected);
    caps.queue_depth = local.queue_depth.min(network.queue_depth);
    caps.max_contexts = local.max_contexts.min(network.max_contexts);
    caps.max_segments = local.max_segments.min(network.max_segments);
    caps.max_transfer = local.max_transfer.min(network.max_transfer);
    caps.one_sided = local.one_sided && network.one_sided;
    caps.views = local.views || network.views;
    caps.checked_by = weaker(local.checked_by, network.checked_by);
    caps.put_ordering = match (local.put_ordering, network.put_ordering) {
        (PutOrdering::AfterPost, PutOrdering::AfterPost) => PutOrdering::AfterPost,
        _ => PutOrdering::AfterCompletion,
    };
    caps.sleep = match (local.sleep, network.sleep) {
        (Sleep::Descriptor, Sleep::Descriptor) if local.joins => Sleep::Descriptor,
        (Sleep::Descriptor, Sleep::Steps(longest)) if network.joins => Sleep::Steps(longest),
        _ => Sleep::Poll,
    };
    caps.joins = false;
    caps.silence_bound = local.silence_bound.max(network.silence_bound);
    caps
}

/// A table guards against bugs only.
fn weaker(one: CheckedBy, other: CheckedBy) -> CheckedBy {
    match (one, other) {
        (CheckedBy::Table, _) | (_, CheckedBy::Table) => CheckedBy::Table,
        (one, _) => one,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_only_one_can_do_is_not_promised() {
        let (mut local, mut network) = (Caps::minimal(), Caps::minimal());
        local.max_unexpected = 100_000;
        network.max_transfer = 10;
        local.one_sided = true;
        local.views = true;
        local.put_ordering = PutOrdering::AfterPost;
        local.checked_by = CheckedBy::Table;
        network.silence_bound = Some(Duration::from_secs(7));
        (local.sleep, network.sleep) = (Sleep::Descriptor, Sleep::Descriptor);
        let caps = both(&local, &network);
        assert_eq!((caps.max_unexpected, caps.max_transfer), (4096, 10));
        assert!(!caps.one_sided && caps.views);
        assert_eq!(caps.put_ordering, PutOrdering::AfterCompletion);
        assert_eq!(caps.checked_by, CheckedBy::Table);
        assert_eq!(caps.silence_bound, Some(Duration::from_secs(7)));
        assert_eq!(caps.sleep, Sleep::Poll, "neither waiter watches the other's descriptor");
        local.joins = true;
        assert_eq!(both(&local, &network).sleep, Sleep::Descriptor);
        network.sleep = Sleep::Steps(Duration::from_millis(4));
        assert_eq!(both(&local, &network).sleep, Sleep::Poll, "the network's waiter watches none");
        network.joins = true;
        assert_eq!(both(&local, &network).sleep, network.sleep);
    }
}
