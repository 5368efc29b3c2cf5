//! A hundred processes that are killed with messages and transfers under way, both ways: each operation of the survivor ends, a peer that lives is
//! not touched, and nothing is left of them on the card.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::Instant,
};

use hg_na::{
    Address, Completion, Descriptor, GoneReason, Memory, Message, Op, OpenOptions, Peer,
    Plugin as _, Region, Rights,
};
use hg_na_verbs::VerbsPlugin;
use watchdog::in_time;

use super::{DEVICES, ports::End};

const KILLS: usize = 100;
/// Set in a process that is killed: the address that it calls.
const KILLED: &str = "HG_TEST_KILLED";
/// Longer than what is sent: the card moves it.
const LEN: u64 = 100_000;
/// Operations of each kind that one side has under way.
const DEPTH: u64 = 4;

/// One side: it keeps operations under way with a peer whose memory it was told of.
struct Side {
    end: End,
    region: Region,
    /// Operations that were posted, and have ended.
    posted: u64,
    ended: u64,
}

impl Side {
    fn open(card: usize) -> Self {
        let devices = env::var(DEVICES).unwrap();
        let device = devices.split(',').nth(card).unwrap();
        let url = Address::new(&format!("verbs://{device}")).unwrap();
        let domain = VerbsPlugin::default().open(&url, &OpenOptions::listening()).unwrap();
        let context = domain.context(0).unwrap();
        let memory = Memory::from(vec![7; usize::try_from(LEN).unwrap()]);
        let region = domain.register(memory, Rights::all()).unwrap();
        Self { end: (domain, context), region, posted: 0, ended: 0 }
    }

    fn step(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.end.1.progress(Instant::now(), &mut done).unwrap();
        let is_own = |it: &&Completion| matches!(it, Completion::Done(done) if done.token == 1);
        self.ended += done.iter().filter(is_own).count() as u64;
        done
    }

    fn post(&mut self, op: Op) {
        // One that is refused is posted no more.
        if self.end.1.post(1, op).is_ok() {
            self.posted += 1;
        }
    }

    fn tell(&mut self, to: Peer) {
        let message = Message::copied(&self.region.descriptor().encode());
        self.post(Op::SendUnexpected { to, message });
    }

    /// As many as are to be under way.
    fn fill(&mut self, with: Peer, far: &Descriptor) {
        while self.posted - self.ended < 3 * DEPTH {
            let before = self.posted;
            let (local, remote) =
                (|| self.region.slice(0, LEN).unwrap(), || far.slice(0, LEN).unwrap());
            let (get, put) = (
                Op::Get { from: with, local: local(), remote: remote() },
                Op::Put { to: with, local: local(), remote: remote() },
            );
            self.post(get);
            self.post(put);
            self.tell(with);
            if self.posted == before {
                return;
            }
        }
    }
}

/// The descriptor in a message, and who it is from.
fn told(done: &[Completion]) -> Option<(Peer, Descriptor)> {
    done.iter().find_map(|it| match it {
        Completion::Unexpected { from, message, .. } => {
            Some((*from, Descriptor::decode(message.as_slice()).unwrap()))
        }
        _ => None,
    })
}

#[test]
fn a_process_that_is_killed() {
    let Ok(address) = env::var(KILLED) else { return };
    let mut side = Side::open(1);
    let there = side.end.1.lookup(&Address::new(&address).unwrap()).unwrap();
    side.tell(there);
    let (start, mut far) = (Instant::now(), None);
    loop {
        in_time!(start, "it is not killed");
        let done = side.step();
        if far.is_none()
            && let Some((_, found)) = told(&done)
        {
            far = Some(found);
        }
        if let Some(far) = &far {
            side.fill(there, far);
        }
    }
}

/// A process that is ended with this, and what it says.
struct Victim(Child);

impl Victim {
    fn start(address: &Address) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "kills::a_process_that_is_killed", "--nocapture"]);
        command.env(KILLED, address.as_str()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _over = self.0.kill();
        let _over = self.0.wait();
    }
}

/// Queue pairs and registrations of all cards, as the kernel counts them.
fn left() -> [usize; 2] {
    ["qp", "mr"].map(|kind| {
        let shown = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap().lines().count()
    })
}

#[test]
fn a_hundred_processes_are_killed_in_the_middle_and_leave_nothing() {
    let (mut own, mut friend) = (Side::open(0), Side::open(1));
    let address = own.end.1.address().clone();
    let to_own = friend.end.1.lookup(&address).unwrap();
    friend.tell(to_own);
    let start = Instant::now();
    while told(&own.step()).is_none() {
        in_time!(start);
        friend.step();
    }
    let before = left();
    for number in 0..KILLS {
        one_is_killed(&mut own, &address, number);
        // Who lives is not touched.
        let (start, heard) = (Instant::now(), friend.ended);
        friend.tell(to_own);
        let mut is_heard = false;
        while !is_heard || friend.ended == heard {
            in_time!(start, "after {number}");
            friend.step();
            is_heard |= told(&own.step()).is_some();
        }
    }
    let start = Instant::now();
    while left() != before {
        in_time!(start, "left: {:?}, before: {before:?}", left());
        own.step();
        friend.step();
    }
}

fn one_is_killed(own: &mut Side, address: &Address, number: usize) {
    (own.posted, own.ended) = (0, 0);
    let (start, mut met) = (Instant::now(), None);
    let mut victim = Victim::start(address);
    while met.is_none() {
        in_time!(start, "{number}: it does not call");
        met = told(&own.step());
    }
    let (peer, far) = met.unwrap();
    own.tell(peer);
    // What both have under way ends now and then, a different number of times for each.
    while own.ended < (number % 20) as u64 {
        in_time!(start, "{number}: nothing ends");
        own.step();
        own.fill(peer, &far);
    }
    own.fill(peer, &far);
    assert!(own.posted > own.ended, "{number}: nothing is under way");
    victim.kill();
    let mut is_gone = false;
    while !is_gone || own.ended < own.posted {
        in_time!(start, "{number}: {} of {} have ended", own.ended, own.posted);
        is_gone |= own.step().iter().any(|it| match it {
            Completion::Gone { peer: gone, reason } if *gone == peer => {
                let is_named = matches!(reason, GoneReason::Exited | GoneReason::Unreachable(_));
                assert!(is_named, "{number}: {reason:?}");
                true
            }
            _ => false,
        });
    }
}
