//! A story for real processes: the same events, with what the machine has no way to do left out, and what real transports do not
//! notice made larger.

use super::{Act, Call, Settings, Story, What};

/// Real transports have longer messages, so what is to be too long for one is longer, and the limits with it.
const LARGER: u64 = 100;

/// Bytes from which on something is made larger.
const LARGE: u64 = 100;

/// Processes that hang from the beginning, at most.
const HUNG_MAX: usize = 6;

/// Microseconds of polling instead of polling for ever: several processes share a processor.
const SPIN: u64 = 100;

impl Story {
    /// The story of a seed, for real processes.
    #[must_use]
    pub fn for_machine(seed: u64) -> Self {
        let mut story = Self::new(seed);
        let (living, hung) = (story.processes.len(), story.hung.min(HUNG_MAX));
        story.hung = hung;
        story.processes.iter_mut().for_each(settle);
        // Nothing refuses memory or threads to a process of root's, nor is its memory taken away.
        let can_be = |what: &What| {
            !matches!(what, What::NoMemory(..) | What::NoThreads(..) | What::Away(..))
        };
        story.events.retain(|event| can_be(&event.what));
        let nearer = |to: &mut usize| {
            if *to > living {
                *to = living + 1 + (*to - living - 1) % hung;
            }
        };
        for event in &mut story.events {
            match &mut event.what {
                What::Call(call) => {
                    nearer(&mut call.to);
                    enlarge(call);
                }
                What::Forget(_, to) => nearer(to),
                _ => {}
            }
        }
        story
    }
}

fn settle(settings: &mut Settings) {
    settings.spin = Some(settings.spin.unwrap_or(SPIN));
    let limits = [
        &mut settings.large_max,
        &mut settings.large_in_service_max,
        &mut settings.backlog_bytes_max,
    ];
    for limit in limits {
        if *limit < 1 << 30 {
            *limit *= LARGER;
        }
    }
}

fn enlarge(call: &mut Call) {
    let larger = |len: usize| {
        let is_large = len as u64 >= LARGE;
        if is_large { len * usize::try_from(LARGER).unwrap_or(1) } else { len }
    };
    call.len = larger(call.len);
    match &mut call.act {
        Act::Answer(len) => *len = larger(*len),
        Act::Pull(len) | Act::Push(len) | Act::Fetch(len) | Act::View(len) if *len >= LARGE => {
            *len *= LARGER
        }
        _ => {}
    }
}
