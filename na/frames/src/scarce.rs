//! Memory of messages that have come in part.
//!
//! With what waits for admission it may take `max-held-mib`. While it takes more, those are sent away whose messages have stood still
//! for [`STANDS`], who keep most first. Whoever's messages come on stays: of such there are as many as peers, of 33 KiB at most each. So
//! does who has no credit for the rest, because his requests wait for admission: with one of 16 KiB in part.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use hg_na::GoneReason;
use hg_na_link::Framed;

use crate::context::{ASK_ROUNDS, FramedContext, Link, Transport};

/// How long messages may stand still while memory is scarce.
const STANDS: Duration = Duration::from_secs(1);
/// Bytes in that time with which they do not.
const STEP: u64 = 4096;

impl<T: Transport> FramedContext<T> {
    #[inline]
    fn holds_too_much(&self) -> bool {
        self.parts.bytes + self.links.held() > self.common.bounds.max_held
    }

    /// More is kept, in part or until it is admitted: where it is too much, all are looked at in a while.
    #[inline]
    pub(crate) fn mind_parts(&mut self) {
        if self.parts.due.is_none() && self.holds_too_much() {
            self.parts.looks += 2;
            self.look_at_parts(Instant::now());
        }
    }

    /// Looks at them when that is due; says whether it was. `has_come`: there was something at the endpoint just now, and whose frames
    /// are still there does not stand still.
    pub(crate) fn run_parts(&mut self, now: Instant, has_come: bool) -> bool {
        if self.parts.due.is_none_or(|due| now < due) {
            return false;
        }
        self.parts.rounds += 1;
        if has_come && self.parts.rounds < ASK_ROUNDS {
            return false;
        }
        self.parts.looks += 1;
        self.look_at_parts(now);
        true
    }

    /// Sends those away whose messages stand still, until there is memory again, and notes how far the others have come.
    fn look_at_parts(&mut self, now: Instant) {
        let look = self.parts.looks;
        // Those that drain end soon, by themselves, and for their own reason.
        let is_judged = |link: &&Link<T>| {
            let Framed { own, lanes, .. } = &link.way;
            own.part.bytes > 0 && own.is_open() && !lanes.are_kept_in_part()
        };
        let some = self.links.iter().filter(is_judged);
        let mut all: Vec<_> =
            some.map(|link| (Reverse(link.way.own.part.bytes), link.peer.index())).collect();
        all.sort_unstable();
        for (_, place) in all {
            let is_scarce = self.holds_too_much();
            let Some(link) = self.links.at(place) else { continue };
            let come = link.way.lanes.in_parts();
            let (before, seen) = std::mem::replace(&mut link.way.own.part.seen, (look, come));
            if is_scarce && before + 1 == look && come < seen + STEP {
                tracing::warn!(
                    place,
                    "a peer whose messages do not come on is disconnected: memory is scarce"
                );
                let why = "its messages took too much memory and did not come on";
                self.refuse(place, why);
                self.end_now(place, GoneReason::Exhausted(why.into()));
            }
        }
        self.parts.rounds = 0;
        self.parts.due = self.holds_too_much().then(|| now + STANDS);
    }
}
