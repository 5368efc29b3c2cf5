//! A caller that stops for good while it calls. Drawn apart, after everything else of a story: what other seeds tell stays as it is.

use super::{Act, Event, FIRST, MICRO, Maker, What};
use crate::random::Random;

/// Of a hundred stories so many have one, where there is a process that may stop.
const STOPS: u64 = 25;

impl Maker {
    /// Has one process stop in the middle of its calls.
    pub(super) fn stop_a_caller(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x5374_6f70);
        if !random.percent(STOPS) || self.hangs.contains(&true) || self.story.processes.len() < 3 {
            return;
        }
        let it = random.index(self.story.processes.len()) + 1;
        // By each of its contexts it would have a share of its own.
        if it <= self.calm || self.story.processes[it - 1].contexts > 1 || self.has_an_end(it) {
            return;
        }
        let middle = self.story.events.len() as u64;
        let at = random.between(middle / 4, middle * 3 / 4);
        self.now = self.story.events[usize::try_from(at).unwrap_or(0)].at;
        let stops_at = self.now;
        // Whoever stops holds what it has asked for.
        let mut may_ask = vec![true; self.story.processes.len() + 1];
        for (to, may) in may_ask.iter_mut().enumerate().skip(1) {
            *may = to != it && self.may_hog(it, to);
        }
        let targets = self.story.processes.clone();
        let fits = |call: &super::Call| {
            let target = targets.get(call.to - 1);
            target.is_none_or(|target| {
                may_ask[call.to] && !(call.lends() && target.large_in_service_max < 1 << 30)
            })
        };
        self.story.events.retain(|event| match &event.what {
            What::Call(call) if call.from == it => event.at < stops_at && fits(call),
            What::Forget(from, _) => *from != it,
            _ => true,
        });
        for _ in 0..random.between(4, 32) {
            let drawn = self.call(&mut random);
            let call = super::Call { from: it, contexts: FIRST, ..drawn };
            let is_own = call.to == it || matches!(call.act, Act::CallOn(to, _) if to == it);
            if !is_own && fits(&call) {
                self.push(What::Call(call));
            }
        }
        self.now += random.pick(&[0, MICRO, 20 * MICRO, 200 * MICRO]);
        self.push(What::Stop(it, None));
    }

    /// Whether a process ends in the story, or stands still at its end.
    fn has_an_end(&self, process: usize) -> bool {
        self.story.events.iter().any(|Event { what, .. }| match what {
            What::Kill(it) | What::Close(it) | What::Drain(it, _) | What::Restart(it) => {
                *it == process
            }
            _ => false,
        })
    }
}
