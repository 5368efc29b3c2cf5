//! Processes that are killed with messages and transfers under way, both ways, a hundred that dial and a hundred that are dialled: each operation of the
//! survivor ends, a peer that lives is not touched, and nothing is left of them on the card.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use hg_na::{Address, Completion, GoneReason};
use watchdog::{hear, in_time};

use super::side::{Side, told};

const KILLS: usize = 100;
/// Set in a process that is killed: the address that it calls; none: it is called at the address that it prints.
const KILLED: &str = "HG_TEST_KILLED";
/// Before an address that is printed.
const MARK: &str = "@ ";

#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_that_is_killed() {
    let Ok(address) = env::var(KILLED) else { return };
    let mut side = Side::open(1);
    let mut there = None;
    if address.is_empty() {
        println!("{MARK}{}", side.end.1.address());
    } else {
        let dialled = side.lookup(&Address::new(&address).unwrap());
        side.tell(0, dialled);
        there = Some(dialled);
    }
    let (start, mut far) = (Instant::now(), None);
    loop {
        in_time!(start, "it is not killed");
        let done = side.step();
        if far.is_none()
            && let Some((from, found)) = told(&done)
        {
            far = Some(found);
            if there.is_none() {
                there = Some(from);
                side.tell(0, from);
            }
        }
        if let (Some(there), Some(far)) = (there, &far) {
            side.fill(0, there, far);
        }
    }
}

/// A process that is ended with this.
struct Victim(Child);

impl Victim {
    /// `None`: it is dialled, at the address that comes with it.
    fn start(address: Option<&Address>) -> (Self, Option<Address>) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "kills::a_process_that_is_killed", "--nocapture"]);
        command.env(KILLED, address.map_or("", Address::as_str));
        command.stdout(if address.is_none() { Stdio::piped() } else { Stdio::null() });
        let mut process = command.spawn().unwrap();
        let said = process.stdout.take();
        let this = Self(process);
        let named = |line: String| Some(Address::new(line.split_once(MARK)?.1.trim()).unwrap());
        let own = said.map(|said| {
            let (tells, told) = mpsc::channel();
            let mut lines = BufReader::new(said).lines();
            thread::spawn(move || tells.send(lines.find_map(|line| named(line.unwrap()))));
            hear(&told).expect("it names its address")
        });
        (this, own)
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

/// Which end is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Dials,
    IsDialled,
}

fn a_hundred_are_killed(end: End) {
    let (mut own, mut friend) = (Side::open(0), Side::open(1));
    let address = own.end.1.address().clone();
    let to_own = friend.lookup(&address);
    friend.tell(0, to_own);
    let start = Instant::now();
    while told(&own.step()).is_none() {
        in_time!(start);
        friend.step();
    }
    let before = left();
    for number in 0..KILLS {
        one_is_killed(&mut own, (end == End::Dials).then_some(&address), number);
        // Who lives is not touched.
        let (start, heard) = (Instant::now(), friend.counts[0].ended);
        friend.tell(0, to_own);
        let mut is_heard = false;
        while !is_heard || friend.counts[0].ended == heard {
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

fn one_is_killed(own: &mut Side, address: Option<&Address>, number: usize) {
    own.counts = Default::default();
    let (start, mut met) = (Instant::now(), None);
    let (mut victim, dialled) = Victim::start(address);
    if let Some(address) = dialled {
        let peer = own.lookup(&address);
        own.tell(0, peer);
    }
    while met.is_none() {
        in_time!(start, "{number}: it does not call");
        met = told(&own.step());
    }
    let (peer, far) = met.unwrap();
    own.tell(0, peer);
    // What both have under way ends now and then, a different number of times for each.
    while own.counts[0].ended < (number % 20) as u64 {
        in_time!(start, "{number}: nothing ends");
        own.step();
        own.fill(0, peer, &far);
    }
    own.fill(0, peer, &far);
    assert!(!own.counts[0].is_over(), "{number}: nothing is under way");
    victim.kill();
    let mut is_gone = false;
    while !is_gone || !own.counts[0].is_over() {
        in_time!(start, "{number}: {:?}", own.counts);
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

#[test]
fn a_hundred_processes_that_dial_are_killed_in_the_middle_and_leave_nothing() {
    a_hundred_are_killed(End::Dials);
}

#[test]
fn a_hundred_processes_that_are_dialled_are_killed_in_the_middle_and_leave_nothing() {
    a_hundred_are_killed(End::IsDialled);
}
