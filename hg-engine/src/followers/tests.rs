//! Every order in which two threads and a loop come by the role. Who parks at the end is waited for by nobody, from everywhere there
//! is a way to the end, who is not patient is told at once, and each rule of the protocol is needed: without it the search finds a
//! state that breaks one of these.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use hg_core::table::Key;

use super::{Followers, TAKES_UNTIL_BUSY, TURN, Turn};

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// F1: who leaves the line tells the next one.
    PassingOn,
    /// F1: the role is kept no longer for who leaves the line.
    LeavingItFree,
    /// H1.
    TellingTheFirst,
    /// F3: who is patient looks by itself.
    Looking,
    /// Patience ends where the holder waits itself.
    EndOfPatience,
    /// A loop that ends passes the role on.
    EndOfLoop,
}

/// Where one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    /// With a call, or to go on with its loop.
    Awake,
    /// It has the role.
    Round,
    Parked,
    /// Between two calls, or two rounds of a loop.
    Away,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct One {
    at: At,
    calls: u8,
    is_settled: bool,
    is_unparked: bool,
    has_waker: bool,
    is_patient: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    followers: Followers<usize>,
    is_free: bool,
    ones: Vec<One>,
    /// Threads before it, the loop behind them.
    threads: usize,
}

impl World {
    fn new(threads: usize, calls: u8, has_loop: bool) -> Self {
        let one = One {
            at: At::Awake,
            calls,
            is_settled: false,
            is_unparked: false,
            has_waker: false,
            is_patient: false,
        };
        let ones = vec![one; threads + usize::from(has_loop)];
        Self { followers: Followers::default(), is_free: true, ones, threads }
    }

    fn tell(&mut self, whom: Option<usize>) {
        whom.into_iter().for_each(|it| self.ones[it].is_unparked = true);
    }

    fn take(&mut self, me: usize, now: Instant) -> bool {
        let takes = self.is_free
            && (!self.followers.any() || self.followers.take(&me, now, me < self.threads));
        self.is_free &= !takes;
        takes
    }

    fn give_back(&mut self, now: Instant, without: Without) {
        self.is_free = true;
        let next = self.followers.give_back(now);
        if without != Without::TellingTheFirst {
            self.tell(next);
        }
    }

    fn end_call(&mut self, me: usize) {
        let one = &mut self.ones[me];
        one.calls -= 1;
        (one.at, one.is_settled, one.has_waker) = (At::Away, false, false);
    }

    fn settle(&mut self, whom: usize) {
        let one = &mut self.ones[whom];
        one.is_settled = true;
        one.is_unparked |= std::mem::take(&mut one.has_waker);
    }

    /// A caller in `Port::follow`.
    fn look(&mut self, me: usize, now: Instant, without: Without) {
        if self.ones[me].is_settled {
            let kept = self.followers.keeper.clone();
            let next = self.followers.leave(&me, self.is_free);
            if without == Without::LeavingItFree {
                self.followers.keeper = kept;
                self.followers.look();
            }
            if without != Without::PassingOn {
                self.tell(next);
            }
            return self.end_call(me);
        }
        if self.take(me, now) {
            self.ones[me].at = At::Round;
            return;
        }
        let is_patient = self.followers.follow(&me, Some(Key::from_bits(me as u64)));
        let one = &mut self.ones[me];
        (one.at, one.is_patient, one.has_waker) = (At::Parked, is_patient, !is_patient);
    }

    fn end_patience(&mut self) {
        let told: Vec<usize> = self.followers.end_patience().map(|(thread, _)| *thread).collect();
        for it in told {
            let one = &mut self.ones[it];
            one.is_patient = false;
            if one.is_settled {
                one.is_unparked = true;
            } else {
                one.has_waker = true;
            }
        }
    }

    /// A loop that has come, or comes by the role.
    fn begin_loop(&mut self, me: usize) {
        assert!(self.followers.keep_for_loop(&me) || self.ones[me].is_unparked);
        self.ones[me].is_unparked = false;
        if self.is_free {
            self.followers.leave(&me, false);
            self.ones[me].at = At::Away;
        } else {
            self.followers.follow(&me, None);
            self.ones[me].at = At::Parked;
        }
    }

    /// What can come next.
    fn nexts(&self, start: Instant, without: Without) -> Vec<World> {
        let mut nexts = Vec::new();
        for me in 0..self.ones.len() {
            let mut step = |change: &mut dyn FnMut(&mut World)| {
                let mut next = self.clone();
                change(&mut next);
                nexts.push(next);
            };
            let (one, is_loop) = (&self.ones[me], me >= self.threads);
            match one.at {
                At::Awake if is_loop => step(&mut |it| it.begin_loop(me)),
                At::Awake => step(&mut |it| it.look(me, start, without)),
                At::Parked => {
                    let looks = one.is_patient && without != Without::Looking;
                    if one.is_unparked || looks {
                        step(&mut |it| {
                            it.ones[me].at = At::Awake;
                            it.ones[me].is_unparked &= is_loop;
                        });
                    }
                }
                At::Round => {
                    for other in (0..self.threads).filter(|it| *it != me) {
                        if !self.ones[other].is_settled && self.ones[other].at == At::Parked {
                            step(&mut |it| it.settle(other));
                        }
                    }
                    step(&mut |it| {
                        if without != Without::EndOfPatience {
                            it.end_patience();
                        }
                        let told =
                            |one: &One| one.at != At::Parked || !one.is_patient || one.is_unparked;
                        assert!(it.ones.iter().all(told), "somebody is patient for ever");
                    });
                    for now in [start, start + TURN] {
                        step(&mut |it| {
                            it.give_back(now, without);
                            if is_loop { it.ones[me].at = At::Away } else { it.end_call(me) }
                        });
                    }
                }
                At::Away if is_loop => {
                    step(&mut |it| {
                        if it.take(me, start) {
                            it.ones[me].at = At::Round;
                        }
                    });
                    step(&mut |it| {
                        it.ones[me].at = At::Over;
                        it.followers.keep_for_nobody();
                        if it.is_free && without != Without::EndOfLoop {
                            it.give_back(start, without);
                        }
                    });
                }
                At::Away => {
                    let at = if one.calls > 0 { At::Awake } else { At::Over };
                    step(&mut |it| it.ones[me].at = at);
                }
                At::Over => {}
            }
        }
        nexts
    }

    fn is_over(&self) -> bool {
        self.ones.iter().all(|one| one.at == At::Over)
    }

    fn check(&self) -> Result<(), &'static str> {
        let is_late = |one: &One| {
            let waits = one.at == At::Parked && one.is_settled;
            waits && !one.is_patient && !one.is_unparked
        };
        if self.ones.iter().any(is_late) {
            return Err("somebody is not told of what has come");
        }
        Ok(())
    }
}

/// Searches all orders; gives how many states there are.
fn search(first: World, without: Without) -> Result<usize, String> {
    let start = Instant::now();
    let mut before: HashMap<World, Vec<World>> = HashMap::from([(first.clone(), Vec::new())]);
    let (mut open, mut ends) = (vec![first], Vec::new());
    while let Some(world) = open.pop() {
        world.check().map_err(|why| format!("{why}: {world:?}"))?;
        if world.is_over() {
            ends.push(world);
            continue;
        }
        for next in world.nexts(start, without) {
            let known = before.contains_key(&next);
            before.entry(next.clone()).or_default().push(world.clone());
            if !known {
                open.push(next);
            }
        }
    }
    let mut reached: HashSet<World> = ends.iter().cloned().collect();
    while let Some(world) = ends.pop() {
        for earlier in &before[&world] {
            if reached.insert(earlier.clone()) {
                ends.push(earlier.clone());
            }
        }
    }
    match before.keys().find(|world| !reached.contains(world)) {
        Some(stuck) => Err(format!("no way leads to the end from here: {stuck:?}")),
        None => Ok(before.len()),
    }
}

/// Two threads, of which one is about to be busy; two threads and a loop; three threads.
fn searches(without: Without) -> impl Iterator<Item = Result<usize, String>> {
    let mut busy = World::new(2, 3, false);
    busy.followers.turn = Some(Turn { of: 0, takes: TAKES_UNTIL_BUSY - 2, since: Instant::now() });
    let worlds = [busy, World::new(2, 1, true), World::new(3, 1, false)];
    worlds.into_iter().map(move |world| {
        std::panic::catch_unwind(|| search(world, without))
            .unwrap_or_else(|_| Err("an assertion has failed".to_owned()))
    })
}

#[test]
fn nobody_waits_for_ever_in_any_order() {
    for states in searches(Without::Nothing) {
        assert!(states.unwrap() > 500);
    }
}

#[test]
fn each_rule_is_needed() {
    for without in [
        Without::PassingOn,
        Without::LeavingItFree,
        Without::TellingTheFirst,
        Without::Looking,
        Without::EndOfPatience,
        Without::EndOfLoop,
    ] {
        assert!(searches(without).any(|found| found.is_err()), "{without:?} is not needed");
    }
}
