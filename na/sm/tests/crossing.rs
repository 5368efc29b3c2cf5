//! Two contexts that flood one another with messages of all lengths, while both sleep whenever they may and keep out
//! what comes for a while: each message arrives once, in its order, as it was sent.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    thread,
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Error, Message, Op, OpenOptions, Peer, Plugin as _};
use watchdog::{LIMIT, in_time};

/// Messages each way.
const MESSAGES: u64 = 2500;

/// Around the lengths at which a message takes one slot more, and then lies elsewhere; and long ones.
const LENS: [usize; 18] =
    [8, 9, 55, 56, 57, 111, 112, 113, 167, 168, 169, 223, 224, 225, 300, 4000, 65_000, 266_240];

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// Xorshift: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What message `number` of one side is: any of the lengths, the longest ones seldom.
fn bytes(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Random((seed + 1) << 32 | (number + 1));
    for _ in 0..4 {
        random.below(1); // Its first numbers are much like the seed.
    }
    let most = if number.is_multiple_of(16) { LENS.len() } else { LENS.len() - 3 };
    let len = LENS[usize::try_from(random.below(most as u64)).unwrap()];
    let fill = random.below(256).to_le_bytes()[0];
    let mut bytes = vec![fill; len];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

struct Side {
    context: Box<dyn Context>,
    /// Whenever it may; else it polls.
    sleeps: bool,
    random: Random,
    /// Whose messages are sent, and come.
    seeds: (u64, u64),
    to: Option<Peer>,
    sent: u64,
    held: Option<Message>,
    /// It was refused, and room was not told since.
    is_full: bool,
    ended: u64,
    came: u64,
    admits: bool,
}

impl Side {
    /// Until all are sent and have come.
    fn run(mut self) {
        let start = Instant::now();
        let mut done = Vec::new();
        while self.came < MESSAGES || self.ended < MESSAGES {
            self.send();
            if self.random.below(50) == 0 {
                self.admits = !self.admits;
                self.context.set_admission(self.admits);
            }
            self.context.progress(Instant::now(), &mut done).unwrap();
            let is_idle = done.is_empty();
            done.drain(..).for_each(|completion| self.take(completion));
            if is_idle && !self.admits {
                self.admits = true;
                self.context.set_admission(true);
            } else if is_idle && self.sleeps && self.context.may_sleep() {
                self.sleep();
            }
            let state = (self.sent, self.ended, self.came);
            in_time!(start, "{:?}: sent, ended, came: {state:?}", self.seeds);
        }
    }

    /// A sleep that nobody ends is a failure: there is always something to come or to go.
    fn sleep(&mut self) {
        let until = self.context.next_deadline().map(|at| at.duration_since(Instant::now()));
        let limit = until.map_or(LIMIT, |until| until.min(LIMIT));
        let start = Instant::now();
        self.context.waiter().wait(Some(limit)).unwrap();
        let is_over = start.elapsed() >= LIMIT - Duration::from_secs(1);
        assert!(
            !is_over,
            "nobody wakes {:?}: {:?}",
            self.seeds,
            (self.sent, self.ended, self.came)
        );
    }

    /// Some more, at least one, in place or from memory of its own, until the transport has enough of them: who sleeps then has
    /// something under way.
    fn send(&mut self) {
        let Some(to) = self.to.filter(|_| !self.is_full) else { return };
        for _ in 0..=self.random.below(40) {
            if self.sent == MESSAGES {
                return;
            }
            let message = match self.held.take() {
                Some(message) => message,
                None => {
                    let bytes = bytes(self.seeds.0, self.sent);
                    if self.random.below(2) == 0 {
                        let mut message = self.context.message(to, bytes.len()).unwrap();
                        message.as_mut_slice().copy_from_slice(&bytes);
                        message
                    } else {
                        Message::from(bytes)
                    }
                }
            };
            match self.context.post(1, Op::SendUnexpected { to, message }) {
                Ok(_) => self.sent += 1,
                Err(rejected) => {
                    assert!(matches!(rejected.error, Error::Again), "{:?}", rejected.error);
                    let Op::SendUnexpected { message, .. } = rejected.op else { panic!("another") };
                    self.held = Some(message);
                    self.is_full = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, completion: Completion) {
        match completion {
            Completion::Unexpected { from, message } => {
                let wanted = bytes(self.seeds.1, self.came);
                let is_it = message.as_slice() == wanted;
                assert!(is_it, "message {} of {} bytes: {message:?}", self.came, wanted.len());
                self.came += 1;
                self.to = Some(from);
            }
            Completion::Done(done) => {
                done.result.unwrap();
                self.ended += 1;
            }
            // The other one has all that was sent, and has left; what it had sent may wait for admission.
            Completion::HungUp { .. } => assert_eq!(self.sent, MESSAGES),
            Completion::Gone { .. } => assert_eq!((self.came, self.sent), (MESSAGES, MESSAGES)),
            Completion::Room { .. } => self.is_full = false,
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[test]
fn floods_that_cross_arrive_whole_and_in_order_whoever_sleeps() {
    for (round, sleeps) in (1..).zip([[true; 2], [false, true]]) {
        let (mut one, other) = (open(), open());
        let to = one.lookup(other.address()).unwrap();
        let side = |context, to, sleeps, seeds: (u64, u64)| Side {
            context,
            sleeps,
            random: Random(seeds.0 + 1),
            seeds,
            to,
            sent: 0,
            held: None,
            is_full: false,
            ended: 0,
            came: 0,
            admits: true,
        };
        let seeds = (2 * round, 2 * round + 1);
        let one = side(one, Some(to), sleeps[0], seeds);
        let other = side(other, None, sleeps[1], (seeds.1, seeds.0));
        thread::scope(|scope| {
            let keep = |side: Side| scope.spawn(move || side.run());
            let threads = [keep(one), keep(other)];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
