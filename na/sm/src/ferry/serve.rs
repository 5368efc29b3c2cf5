//! The owner: checks what it is asked for, and copies between its region and a place.

use hg_na::Memory;

use super::{
    Ferry,
    wire::{Answer, Ask, PLACES, Verdict, offset_of_place},
};
use crate::{
    fail,
    region::{cma::Direction, state::Regions, table::needed_for},
    ring::Broken,
};

impl Ferry {
    /// Does one piece and queues its answer; gives the bytes that were copied.
    pub(super) fn serve(&mut self, ask: Ask, regions: &Regions) -> Result<u64, Broken> {
        // A peer that keeps the protocol asks for as many pieces as there are places.
        if self.answers.len() >= PLACES {
            return Err(Broken::Note);
        }
        let Some(places) = &self.places else { return Ok(0) };
        self.has_served |= ask.direction == Direction::Get;
        let place = match ask.direction {
            Direction::Get => &places.own,
            Direction::Put => &places.theirs,
        };
        let verdict = verdict_on(&ask, regions, place);
        fail::point("served");
        self.answers.push_back(Answer { place: ask.place, verdict });
        Ok(if verdict == Verdict::Done { u64::from(ask.len) } else { 0 })
    }
}

/// Copies a piece, if that is granted.
fn verdict_on(ask: &Ask, regions: &Regions, place: &Memory) -> Verdict {
    let Some((memory, granted)) = regions.find(ask.name, ask.proof) else { return Verdict::Stale };
    if !granted.contains(needed_for(ask.direction)) {
        return Verdict::Denied(granted);
    }
    let (size, (start, len)) = (memory.len(), ask.whole);
    // The piece lies inside of the whole: the note was checked.
    if start.checked_add(len).is_none_or(|end| end > size) {
        return Verdict::Outside(size);
    }
    let (near, far) = ((&*memory, ask.offset), (place, offset_of_place(ask.place)));
    let copied = match ask.direction {
        Direction::Get => hg_na_memory::copy_between(near, far, u64::from(ask.len)),
        Direction::Put => hg_na_memory::copy_between(far, near, u64::from(ask.len)),
    };
    copied.map_or(Verdict::Stale, |()| Verdict::Done)
}
