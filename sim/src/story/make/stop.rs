//! A caller that stops for good while it calls, and a long shortage of threads. Drawn apart, after everything else of a story: what other seeds tell stays as it is.

use super::{Act, Call, EVENTS_MIN, Event, FIRST, MICRO, MILLI, Maker, Manner, What};
use crate::{random::Random, rpcs::Kind, story::ENCODED_MORE};

/// Of a hundred stories so many have one, where there is a process that may stop.
const STOPS: u64 = 25;

/// Of a hundred stories with a shortage of threads, so many have one that lasts longer than pieces of transfers wait for a thread.
const LONG_SHORTAGES: u64 = 30;
const LONG_SHORTAGE: u64 = 2_500 * MILLI;

impl Maker {
    /// Has one shortage of threads last long.
    pub(super) fn lengthen_a_shortage(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x5468_7264);
        let shortage = self.story.events.iter_mut().find_map(|event| match &mut event.what {
            What::NoThreads(_, nanos) => Some(nanos),
            _ => None,
        });
        if let Some(nanos) = shortage.filter(|_| random.percent(LONG_SHORTAGES)) {
            *nanos = LONG_SHORTAGE;
        }
    }

    /// Calls that hold on to nothing instead of those that were taken away because somebody stops.
    pub(super) fn fill_up(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x4669_6c6c);
        let last = self.story.events.iter().map(|event| event.at).max().unwrap_or(MILLI);
        let processes = self.story.processes.len();
        while (self.story.events.len() as u64) < EVENTS_MIN {
            let from = random.index(processes) + 1;
            let to = (from + random.index(processes - 1)) % processes + 1;
            let kind = random.pick(&[Kind::Plain, Kind::Async, Kind::Later, Kind::Blocking]);
            let manner = random.pick(&[Manner::Wait, Manner::Await, Manner::Notify]);
            self.now = random.between(MILLI, last);
            self.push(What::Call(Call::plain(from, to, kind, manner)));
        }
    }

    /// Has some calls made by other methods, which promise the same.
    pub(super) fn vary_manners(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x4d61_6e6e);
        if random.percent(50) {
            return;
        }
        for event in &mut self.story.events {
            if let What::Call(call) = &mut event.what {
                call.manner = match call.manner {
                    Manner::Wait => random.pick(&[Manner::Wait, Manner::Look]),
                    Manner::Await => {
                        random.pick(&[Manner::Await, Manner::AwaitOwned, Manner::Poll])
                    }
                    other => other,
                };
            }
        }
    }

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
        let greedy = self.with_little_room(&may_ask).filter(|_| random.percent(50));
        let targets = self.story.processes.clone();
        let fits = |call: &Call| {
            let target = targets.get(call.to - 1);
            target.is_none_or(|target| {
                let is_tight = target.large_in_service_max < 1 << 30 && greedy != Some(call.to);
                may_ask[call.to] && !(call.lends() && is_tight)
            })
        };
        // Others lend there only what finds room beside one that holds all that it can, and none of them holds anything for ever.
        let is_out_of_place = |call: &Call| {
            let most = targets.get(call.to - 1).map_or(0, |it| it.large_in_service_max);
            let is_too_long = call.lends() && call.lent_max() > most / 4;
            greedy == Some(call.to) && (is_too_long || call.stays())
        };
        self.story.events.retain(|event| match &event.what {
            What::Call(call) if call.from == it => event.at < stops_at && fits(call),
            What::Call(call) => !is_out_of_place(call),
            What::Forget(from, to) => *from != it && (greedy != Some(*from) || *to != it),
            _ => true,
        });
        for _ in 0..random.between(4, 32) {
            let drawn = self.call(&mut random);
            let call = Call { from: it, contexts: FIRST, ..drawn };
            let is_own = call.to == it || matches!(call.act, Act::CallOn(to, _) if to == it);
            if !is_own && fits(&call) {
                self.push(What::Call(call));
            }
        }
        if let Some(to) = greedy {
            self.claim_all(it, to, &mut random);
        }
        self.now += random.pick(&[0, MICRO, 20 * MICRO, 200 * MICRO]);
        self.push(What::Stop(it, None));
    }

    /// A process with little room for large arguments, which may be asked.
    fn with_little_room(&self, may_ask: &[bool]) -> Option<usize> {
        let is_tight = |to: usize| self.story.processes[to - 1].large_in_service_max < 1 << 30;
        (1..=self.story.processes.len()).find(|to| may_ask[*to] && is_tight(*to))
    }

    /// Asks for all the room there is for large arguments, in one piece, or as much of it as is ever given.
    fn claim_all(&mut self, from: usize, to: usize, random: &mut Random) {
        let most = self.story.processes[to - 1].large_in_service_max;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        for _ in 0..random.between(1, 4) {
            let kind = random.pick(&[Kind::Plain, Kind::Async, Kind::Blocking]);
            let len = random.pick(&[most, most / 2, most / 4]) - ENCODED_MORE;
            let call = Call::plain(from, to, kind, Manner::Await);
            self.push(What::Call(Call { len, ..call }));
        }
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
