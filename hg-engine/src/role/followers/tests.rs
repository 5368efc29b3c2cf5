//! Every order in which two threads and two loops come by the role. Who parks or sleeps at the end is waited for by nobody, no
//! order goes on for ever, and each rule of the protocol is needed: without it the search finds an order that goes wrong.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{Follower, Followers};

type Who = Follower<usize, usize>;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// F1 passes on what it was popped for.
    PassingOn,
    /// H1 pops loops, too.
    TellingLoopsOfTheEnd,
    /// H1 pops loops that are armed, too.
    TellingArmedLoopsOfTheEnd,
    /// H3.
    TellingLoopsOfFinds,
    /// L2 pops threads only.
    GoingRoundOnceMore,
    /// L3.
    News,
    /// L4 pops somebody.
    PassingOnToSleep,
    /// L4 pops none that is armed.
    SleepingTogether,
}

/// One with a call that somebody settles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    is_settled: bool,
    is_unparked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Loop {
    at: At,
    is_settled: bool,
    /// Its call was taken.
    is_over: bool,
    is_rung: bool,
    /// Its sleep may end once by something else.
    wakes_once: bool,
}

/// Where a thread or a loop is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    Start,
    /// It has the role.
    Round,
    /// It has the role, and something has settled whose waker is to be woken.
    Found(Target),
    /// It tells these, then goes on there.
    Tells(Vec<Who>, Box<At>),
    /// A loop looks after its own call.
    Looks,
    /// A loop asks whether it may sleep.
    Asks,
    /// The transport is told that it will.
    Arms,
    /// Parked, or asleep: whether on the transport.
    Sleeps(bool),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Target {
    Thread(usize),
    Loop(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    followers: Followers<usize, usize>,
    is_free: bool,
    /// The transport wakes those that sleep on it; a round takes that back.
    is_armed: bool,
    threads: Vec<Thread>,
    loops: Vec<Loop>,
}

impl World {
    fn new(threads: usize, loops: usize) -> Self {
        let mut followers = Followers::default();
        (0..loops).for_each(|it| followers.add_loop(it));
        let thread = Thread { at: At::Start, is_settled: false, is_unparked: false };
        let (is_settled, is_over, is_rung) = (false, false, false);
        let one = |it| Loop { at: At::Start, is_settled, is_over, is_rung, wakes_once: it == 0 };
        let (threads, loops) = (vec![thread; threads], (0..loops).map(one).collect());
        Self { followers, is_free: true, is_armed: false, threads, loops }
    }

    fn tell(&mut self, who: &[Who]) {
        for one in who {
            match *one {
                Follower::Thread(it) => self.threads[it].is_unparked = true,
                Follower::Armed(it) | Follower::Beside(it) => self.loops[it].is_rung = true,
            }
        }
    }

    /// H1.
    fn give_back(&mut self, without: Without) -> Vec<Who> {
        self.is_free = true;
        let next = self.followers.next();
        let is_told = match &next {
            Some(Follower::Thread(_)) | None => true,
            Some(Follower::Beside(_)) => without != Without::TellingLoopsOfTheEnd,
            Some(Follower::Armed(_)) => {
                let not = [Without::TellingLoopsOfTheEnd, Without::TellingArmedLoopsOfTheEnd];
                !not.contains(&without)
            }
        };
        next.filter(|_| is_told).into_iter().collect()
    }

    /// What a round may find: calls that are open.
    fn open(&self) -> Vec<Target> {
        let threads = (0..self.threads.len()).filter(|&it| !self.threads[it].is_settled);
        let loops = (0..self.loops.len()).filter(|&it| !self.loops[it].is_settled);
        threads.map(Target::Thread).chain(loops.map(Target::Loop)).collect()
    }

    /// Settles the call in the round that begins here; what is to be told of it comes after the lock.
    fn settle(&mut self, target: Target) -> At {
        self.is_armed = false;
        match target {
            Target::Thread(it) => self.threads[it].is_settled = true,
            Target::Loop(it) => self.loops[it].is_settled = true,
        }
        At::Found(target)
    }

    /// The waker is woken, then H3.
    fn tell_of(&mut self, target: Target, without: Without) -> At {
        if let Target::Thread(it) = target {
            self.threads[it].is_unparked = true;
        }
        let loops = match without {
            Without::TellingLoopsOfFinds => Vec::new(),
            _ => self.followers.tell_loops(),
        };
        At::Tells(loops, Box::new(At::Round))
    }

    /// All that this thread may do next.
    fn thread_steps(&self, it: usize, without: Without) -> Vec<Self> {
        let (mut world, mut others) = (self.clone(), Vec::new());
        let at = match &self.threads[it].at {
            At::Start if self.threads[it].is_settled => {
                world.followers.unfollow(&it);
                let passes = world.is_free && without != Without::PassingOn;
                let next = if passes { world.followers.next() } else { None };
                At::Tells(next.into_iter().collect(), Box::new(At::Done)) // F1
            }
            At::Start => {
                world.followers.unfollow(&it);
                if std::mem::take(&mut world.is_free) {
                    At::Round // F2
                } else {
                    world.followers.push(it); // F3
                    At::Sleeps(false)
                }
            }
            At::Sleeps(_) if self.threads[it].is_unparked => {
                world.threads[it].is_unparked = false;
                At::Start
            }
            At::Round if self.threads[it].is_settled => {
                let next = world.give_back(without);
                At::Tells(next, Box::new(At::Done))
            }
            At::Round => {
                others = self.finds(|world, at| world.threads[it].at = at);
                // Its own answer it takes without a word.
                world.threads[it].is_settled = true;
                world.is_armed = false;
                let next = world.give_back(without);
                At::Tells(next, Box::new(At::Done))
            }
            At::Found(target) => world.tell_of(*target, without),
            At::Tells(who, then) => {
                world.tell(who);
                (**then).clone()
            }
            _ => return Vec::new(),
        };
        world.threads[it].at = at;
        others.push(world);
        others
    }

    /// A round that finds something, whichever that is.
    fn finds(&self, set: impl Fn(&mut Self, At)) -> Vec<Self> {
        let found = |target| {
            let mut world = self.clone();
            let at = world.settle(target);
            set(&mut world, at);
            world
        };
        self.open().into_iter().map(found).collect()
    }

    /// All that this loop may do next.
    fn loop_steps(&self, it: usize, without: Without) -> Vec<Self> {
        let (mut world, mut others) = (self.clone(), Vec::new());
        let at = match &self.loops[it].at {
            At::Start => {
                world.followers.look(&it); // L1
                if std::mem::take(&mut world.is_free) { At::Round } else { At::Looks }
            }
            At::Round => {
                others = self.finds(|world, at| world.loops[it].at = at);
                world.is_armed = false;
                world.followers.look(&it);
                let next = if without == Without::GoingRoundOnceMore {
                    world.give_back(without)
                } else {
                    world.is_free = true;
                    world.followers.next_thread().into_iter().collect() // L2
                };
                At::Tells(next, Box::new(At::Looks))
            }
            At::Found(target) => world.tell_of(*target, without),
            At::Tells(who, then) => {
                world.tell(who);
                (**then).clone()
            }
            At::Looks => {
                world.loops[it].is_over |= self.loops[it].is_settled;
                At::Asks
            }
            At::Asks if self.followers.has_news(&it) && without != Without::News => At::Start, // L3
            At::Asks if self.is_free => {
                world.is_free = false;
                world.is_armed = true;
                At::Arms
            }
            At::Asks => {
                world.followers.follow(it); // L5
                At::Sleeps(false)
            }
            At::Arms => {
                let before = world.followers.clone();
                let next = world.followers.arm(it); // L4
                world.is_free = true;
                let next = match (without, next) {
                    (Without::PassingOnToSleep, _) => {
                        world.followers = before;
                        world.followers.waiting.insert(0, Follower::Armed(it));
                        None
                    }
                    (Without::SleepingTogether, None) if world.followers.waiting.len() > 1 => {
                        world.followers.waiting.pop()
                    }
                    (_, next) => next,
                };
                At::Tells(next.into_iter().collect(), Box::new(At::Sleeps(true)))
            }
            At::Sleeps(_) if self.loops[it].is_rung => {
                world.loops[it].is_rung = false;
                At::Start
            }
            At::Sleeps(_) if self.loops[it].wakes_once => {
                world.loops[it].wakes_once = false;
                At::Start
            }
            At::Sleeps(_) | At::Done => return Vec::new(),
        };
        world.loops[it].at = at;
        others.push(world);
        others
    }

    fn steps(&self, without: Without) -> Vec<Self> {
        let threads = (0..self.threads.len()).flat_map(|it| self.thread_steps(it, without));
        threads.chain((0..self.loops.len()).flat_map(|it| self.loop_steps(it, without))).collect()
    }

    /// Nothing happens any more.
    fn check_end(&self) {
        assert!(self.is_free, "the role was kept: {self:?}");
        let are_done = self.threads.iter().all(|it| it.at == At::Done);
        assert!(are_done, "a thread is parked for ever: {self:?}");
        let is_woken = |it: &Loop| it.at == At::Sleeps(true) && (it.is_over || !it.is_settled);
        let are_woken = self.loops.iter().all(is_woken);
        assert!(are_woken, "a loop sleeps that has to look: {self:?}");
        assert!(self.is_armed || self.loops.is_empty(), "nothing wakes the loops: {self:?}");
    }
}

/// Goes through all orders; gives how many worlds there are.
fn search(threads: usize, loops: usize, without: Without) -> usize {
    // Whether everything after it was seen.
    let mut seen = HashMap::new();
    let first = World::new(threads, loops);
    let mut path = vec![(first.clone(), first.steps(without))];
    seen.insert(first, false);
    while let Some((world, next)) = path.last_mut() {
        let Some(after) = next.pop() else {
            seen.insert(world.clone(), true);
            path.pop();
            continue;
        };
        match seen.get(&after) {
            Some(true) => {}
            Some(false) => panic!("they wake each other for ever: {after:?}"),
            None => {
                let steps = after.steps(without);
                if steps.is_empty() {
                    after.check_end();
                }
                seen.insert(after.clone(), false);
                path.push((after, steps));
            }
        }
    }
    seen.len()
}

#[test]
fn nobody_is_forgotten_and_nobody_wakes_others_for_ever() {
    for (threads, loops) in [(0, 1), (0, 2), (1, 1), (2, 0), (3, 0), (1, 2), (2, 1)] {
        let worlds = search(threads, loops, Without::Nothing);
        assert!(worlds > 10, "{threads} threads and {loops} loops have come by the role");
    }
}

#[test]
fn each_rule_is_needed() {
    for without in [
        Without::PassingOn,
        Without::TellingLoopsOfTheEnd,
        Without::TellingArmedLoopsOfTheEnd,
        Without::TellingLoopsOfFinds,
        Without::GoingRoundOnceMore,
        Without::News,
        Without::PassingOnToSleep,
        Without::SleepingTogether,
    ] {
        let is_found =
            [(2, 0), (3, 0), (1, 1), (0, 2), (2, 1), (1, 2)].iter().any(|&(threads, loops)| {
                let search = AssertUnwindSafe(|| search(threads, loops, without));
                catch_unwind(search).is_err()
            });
        assert!(is_found, "{without:?}: nothing goes wrong");
    }
}
