//! Makes a story that fails shorter, as long as it fails in the same way.

use crate::{
    interrupts::Interrupts,
    run,
    state::Checks,
    story::{Act, Call, Event, FIRST, Manner, Story, What},
    trace::Tracing,
};

/// Runs that are spent on one story.
const TRIES: u32 = 8000;

/// Orders of its threads in which a shorter story is tried.
const ORDERS: u64 = 3;

/// The shortest story that was found, and why that fails.
#[must_use]
pub fn shrink(story: &Story, checks: &Checks, failure: &str) -> (Story, String) {
    let mut shrinking = Shrinking {
        best: story.clone(),
        failure: failure.to_owned(),
        check: check_of(failure).to_owned(),
        checks: checks.clone(),
        tries: TRIES,
    };
    shrinking.interrupt_nobody();
    loop {
        let before = shrinking.best.events.len();
        shrinking.drop_events();
        shrinking.make_simpler();
        if shrinking.tries == 0 || shrinking.best.events.len() == before {
            break;
        }
    }
    shrinking.settle_settings();
    (shrinking.best, shrinking.failure)
}

/// The name of the check that a failure breaks.
#[must_use]
pub fn check_of(failure: &str) -> &str {
    failure.split_once(':').map_or(failure, |(check, _)| check)
}

struct Shrinking {
    best: Story,
    failure: String,
    check: String,
    checks: Checks,
    tries: u32,
}

impl Shrinking {
    /// Takes a story if it fails in the same way.
    fn attempt(&mut self, story: &Story) -> bool {
        for order in 0..ORDERS {
            if self.tries == 0 {
                return false;
            }
            self.tries -= 1;
            let order = story.order.wrapping_add(order);
            let story = Story { order, ..story.clone() };
            if let Some(why) = run::run(&story, self.checks.clone(), Tracing::Off).failure
                && check_of(&why) == self.check
            {
                (self.best, self.failure) = (story, why);
                return true;
            }
        }
        false
    }

    /// One in which threads are interrupted less is easier to read.
    fn interrupt_nobody(&mut self) {
        let Interrupts { every, .. } = self.best.interrupts;
        for interrupts in [Interrupts::default(), Interrupts { every, under_locks: false }] {
            let story = Story { interrupts, ..self.best.clone() };
            if interrupts != self.best.interrupts && self.attempt(&story) {
                return;
            }
        }
    }

    fn drop_events(&mut self) {
        let mut size = self.best.events.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.best.events.len() {
                let mut shorter = self.best.clone();
                let end = (at + size).min(shorter.events.len());
                shorter.events.drain(at..end);
                if !self.attempt(&shorter) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn make_simpler(&mut self) {
        for at in 0..self.best.events.len() {
            let event = self.best.events[at].clone();
            simplify(event, |simpler| {
                let mut story = self.best.clone();
                story.events[at] = simpler.clone();
                self.attempt(&story)
            });
        }
    }

    /// Limits that do not matter are the large ones.
    fn settle_settings(&mut self) {
        for process in 0..self.best.processes.len() {
            let settle: [fn(&mut crate::story::Settings); 4] = [
                |it| it.spin = Some(0),
                |it| it.background = true,
                |it| it.in_service_max = 4096,
                |it| it.calls_max = 65_536,
            ];
            for settle in settle {
                let mut story = self.best.clone();
                settle(&mut story.processes[process]);
                self.attempt(&story);
            }
        }
    }
}

/// Makes an event easier to read as often as it still fails then: each time the last one that did.
fn simplify(mut event: Event, mut fails: impl FnMut(&Event) -> bool) -> Event {
    let mut tried = 0;
    while let Some(next) = simpler(&event).into_iter().nth(tried) {
        if fails(&next) {
            event = next;
        } else {
            tried += 1;
        }
    }
    event
}

/// Events that are easier to read.
fn simpler(event: &Event) -> Vec<Event> {
    let What::Call(call) = &event.what else { return Vec::new() };
    let mut all = Vec::new();
    if call.len > 0 {
        all.push(Call { len: 0, ..call.clone() });
    }
    if call.frozen > 0 {
        all.push(Call { frozen: 0, ..call.clone() });
    }
    if !matches!(call.act, Act::Answer(0)) {
        all.push(Call { act: Act::Answer(0), ..call.clone() });
    }
    if call.manner != Manner::Await && !call.manner.is_one_way() {
        all.push(Call { manner: Manner::Await, ..call.clone() });
    }
    if call.contexts != FIRST {
        all.push(Call { contexts: FIRST, ..call.clone() });
    }
    if call.waits_for_room {
        all.push(Call { waits_for_room: false, ..call.clone() });
    }
    if call.deadline.is_some() {
        all.push(Call { deadline: None, ..call.clone() });
    }
    all.into_iter().map(|call| Event { at: event.at, what: What::Call(call) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpcs::Kind;

    #[test]
    fn what_was_made_simpler_once_stays_so_when_something_else_is() {
        let plain = Call::plain(1, 2, Kind::Async, Manner::Await);
        let call = Call {
            act: Act::Pull(100),
            len: 3000,
            frozen: 300,
            deadline: Some(1000),
            manner: Manner::Wait,
            waits_for_room: true,
            contexts: None,
            ..plain.clone()
        };
        let event = |call| Event { at: 0, what: What::Call(call) };
        let all = simplify(event(call.clone()), |_| true);
        assert_eq!(all, event(plain.clone()));
        let is_long = |it: &Event| matches!(&it.what, What::Call(call) if call.len > 0);
        let but_one = simplify(event(call), is_long);
        assert_eq!(but_one, event(Call { len: 3000, ..plain }));
    }
}
