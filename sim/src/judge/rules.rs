//! What a story says of a call: whether it ends, and how it may.

use crate::story::{Act, Call, Manner, Story};

/// What is known of the two sides of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides {
    /// One of them was stopped, or had something refused.
    pub(crate) was_disturbed: bool,
    /// The target lives, is the one that was called, and does not hang.
    pub(crate) target_is_well: bool,
    /// It has begun anew: the caller may not know yet that the one before is gone.
    pub(crate) target_was_restarted: bool,
    /// It has begun to drain at some time, and has not served the call.
    pub(crate) target_has_drained: bool,
    /// The caller has closed the connection at some time.
    pub(crate) is_forgotten: bool,
}

/// Whether a call ends by itself if its target is well, whatever others do.
pub(crate) fn ends_by_itself(story: &Story, call: &Call) -> bool {
    if story.hangs(call.to) {
        return false;
    }
    let is_kept_by_hog = call.lends() && !story.is_room_for(call);
    let ends = !call.stays() && call.act != Act::UntilCancelled;
    ends && !story.is_hog(call.from, call.to) && !is_kept_by_hog && has_room(story, call)
}

/// Whether a call does not wait for room that others may hold as long as they like.
pub(crate) fn has_room(story: &Story, call: &Call) -> bool {
    !call.waits_for_room || story.processes[call.from - 1].calls_max >= 1000
}

/// Whether a call may end by such an error.
pub(crate) fn is_possible(call: &Call, kind: &str, sides: Sides) -> bool {
    let Sides { was_disturbed, target_is_well, target_was_restarted, is_forgotten, .. } = sides;
    match kind {
        "Handler" => {
            let may_refuse =
                matches!(call.act, Act::Refuse | Act::Forget) || call.act.is_transfer();
            may_refuse || was_disturbed
        }
        "DeadlineExceeded" => call.deadline.is_some(),
        "Cancelled" => {
            let is_cancelled = matches!(call.manner, Manner::Cancel(_));
            is_cancelled || is_forgotten || call.deadline.is_some() || !target_is_well
        }
        "PeerGone" => !target_is_well || target_was_restarted || is_forgotten,
        "Draining" => sides.target_has_drained,
        "Panicked" => matches!(call.act, Act::Panic | Act::Poison),
        "Decode" => call.act == Act::Poison,
        "Rejected" | "Overloaded" => {
            let is_large = call.lends() || matches!(call.act, Act::Answer(len) if len >= 100);
            let is_bad = matches!(call.act, Act::Forget | Act::Poison);
            is_large || is_bad || !target_is_well || was_disturbed
        }
        // Some limit or other; a probe finds none of them reached.
        "NotMade" => true,
        _ => false,
    }
}
