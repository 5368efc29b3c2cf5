//! Has the events of a story happen, waits for the end of all calls, and judges.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use nix::sys::signal::Signal;

use super::{
    Transport,
    machine::BEYOND,
    now,
    troupe::{Player, Role, Said},
    verdict::{Calls, Side, is_independent},
};
use crate::{
    judge::has_room,
    rpcs::Kind,
    story::{Call, Manner, Story, What},
};

const MILLI: u64 = 1_000_000;
/// Whatever ends has ended by then.
const PATIENCE: u64 = 40_000 * MILLI;
/// Between the last process's opening and the first call.
const LEAD: u64 = 2 * MILLI;
/// Until those that have something left are asked again.
const LOOK: u64 = 5 * MILLI;

/// Runs a story.
pub(super) fn run(story: &Story, transport: Transport, program: &Path) -> Result<(), String> {
    let mut director = Director::new(story, transport, program);
    director.play().map_err(|why| format!("{why}\n{}", watchdog::report()))
}

struct Director<'a> {
    story: &'a Story,
    transport: Transport,
    program: &'a Path,
    /// Of this run, among all that run now.
    name: String,
    told: Sender<Said>,
    said: Receiver<Said>,
    /// By number; the last place is that of all that hang from the beginning.
    players: Vec<Option<Player>>,
    sides: Vec<Side>,
    /// Of the processes by number.
    addresses: Vec<String>,
    has_opened: Vec<bool>,
    /// Those that begin anew, when the one before has ended, from which event on.
    restarts: Vec<Option<usize>>,
    /// Who goes on when, and which incarnation.
    pauses: BTreeSet<(u64, usize, u32)>,
    calls: Calls,
    /// What is not zero in a process, once it was asked.
    left: Vec<Option<String>>,
    begun: u64,
}

impl<'a> Director<'a> {
    fn new(story: &'a Story, transport: Transport, program: &'a Path) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: all that counts is that no two are the same.
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("sim-{}-{run}", std::process::id());
        let (told, said) = channel();
        let all = story.processes.len() + story.hung + 1;
        let mut sides = vec![Side::default(); all];
        for (number, side) in sides.iter_mut().enumerate().skip(1) {
            (side.lives, side.hangs) = (true, story.hangs(number));
        }
        Self {
            story,
            transport,
            program,
            name,
            told,
            said,
            players: (0..all).map(|_| None).collect(),
            sides,
            addresses: vec![String::new(); all],
            has_opened: vec![false; all],
            restarts: vec![None; all],
            pauses: BTreeSet::new(),
            calls: Calls::default(),
            left: vec![None; all],
            begun: 0,
        }
    }

    fn play(&mut self) -> Result<(), String> {
        self.open()?;
        self.perform_all()?;
        self.wait_until(|it| it.all_have_opened(), |_| "open: a process does not open".to_owned())?;
        self.wait_for_calls("does not end while others hold on to what they have", |it, call| {
            is_independent(it.story, call, &it.sides)
        })?;
        self.tell_all("over");
        self.wait_for_calls("does not end", |it, call| {
            !it.sides[call.to].hangs && has_room(it.story, call)
        })?;
        self.calls.judge(&self.sides)?;
        self.probe()?;
        self.numbers(|side| side.hangs).into_iter().for_each(|it| self.kill(it));
        self.wait_for_calls("does not end although its target is dead", |_, _| true)?;
        self.see_what_is_left()?;
        self.close_all()
    }

    fn numbers(&self, is_meant: impl Fn(&Side) -> bool) -> Vec<usize> {
        let all = self.sides.iter().enumerate().skip(1);
        all.filter(|(_, side)| is_meant(side)).map(|(number, _)| number).collect()
    }

    /// Those that live and do not hang.
    fn well(&self) -> Vec<usize> {
        self.numbers(|side| side.lives && !side.hangs)
    }

    fn start(&mut self, process: usize, first: usize) -> Result<(), String> {
        let url = match (self.transport, self.addresses[process].as_str()) {
            (Transport::Sm, _) => format!("sm://{}-{process}", self.name),
            (Transport::Tcp, "") => "tcp://127.0.0.1:0".to_owned(),
            (Transport::Tcp, address) => address.to_owned(),
        };
        let Self { program, transport, .. } = *self;
        let (seed, incarnation) = (self.story.seed, self.sides[process].incarnation);
        let role = Role { program, transport, seed, process, incarnation, first };
        self.players[process] = Some(Player::start(role, &url, &self.told)?);
        if incarnation > 0 {
            // Before anything else: one that is told to close while it opens may have a handler that calls on.
            self.tell_begin(process);
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), String> {
        let living = self.story.processes.len();
        // Those that hang share a process.
        let processes = living + usize::from(self.story.hung > 0);
        (1..=processes).try_for_each(|process| self.start(process, 0))?;
        self.wait_until(|it| it.all_have_opened(), |_| "open: a process does not open".to_owned())?;
        if let Some(Some(hung)) = self.players.get(living + 1) {
            hung.signal(Signal::SIGSTOP);
        }
        self.begun = now() + LEAD;
        (1..=living).for_each(|process| self.tell_begin(process));
        Ok(())
    }

    fn all_have_opened(&self) -> bool {
        let living = self.story.processes.len();
        let all = self.numbers(|side| side.lives);
        all.into_iter()
            .all(|it| self.has_opened[it.min(living + 1)] || (self.sides[it].hangs && it <= living))
    }

    fn tell(&mut self, process: usize, line: &str) {
        if let Some(player) = &mut self.players[process] {
            player.tell(line);
        }
    }

    fn tell_all(&mut self, line: &str) {
        self.well().into_iter().for_each(|process| self.tell(process, line));
    }

    fn tell_begin(&mut self, process: usize) {
        let line = format!("begin {} {}", self.begun, self.addresses[1..].join(" "));
        self.tell(process, &line);
    }

    /// Events and the ends of pauses, in the order of their times.
    fn perform_all(&mut self) -> Result<(), String> {
        let mut events = self.story.events.iter().enumerate().peekable();
        loop {
            let event = events.peek().map(|(_, event)| self.begun + event.at);
            let pause = self.pauses.first().map(|(at, ..)| *at);
            let Some(next) = event.into_iter().chain(pause).min() else { return Ok(()) };
            self.listen(next, |_| false)?;
            if event == Some(next)
                && let Some((number, event)) = events.next()
            {
                self.perform(number, &event.what)?;
            } else if let Some((_, process, incarnation)) = self.pauses.pop_first() {
                self.go_on(process, incarnation);
            }
        }
    }

    fn perform(&mut self, number: usize, what: &What) -> Result<(), String> {
        match *what {
            What::Call(ref call) if self.sides[call.from].lives => {
                self.calls.add(number as u64, call, &self.sides);
            }
            What::Stop(it, nanos) if self.sides[it].lives => self.stop(it, nanos),
            What::Kill(it) if self.sides[it].lives => self.kill(it),
            What::Close(it) if self.sides[it].lives => {
                self.sides[it].lives = false;
                self.restarts[it] = None;
                self.tell(it, "close");
            }
            What::Drain(it, nanos) if self.sides[it].lives => {
                let side = &mut self.sides[it];
                (side.lives, side.has_drained) = (false, true);
                self.restarts[it] = None;
                self.tell(it, &format!("drain {nanos}"));
            }
            What::Restart(it) if !self.sides[it].lives => {
                let side = &mut self.sides[it];
                (side.lives, side.was_restarted, side.stopped_until) = (true, true, 0);
                side.incarnation += 1;
                self.has_opened[it] = false;
                self.restarts[it] = Some(number + 1);
                return self.begin_anew(it);
            }
            // A process does that itself.
            What::Forget(from, to) => self.calls.forgotten(from, to),
            _ => {}
        }
        Ok(())
    }

    fn stop(&mut self, process: usize, nanos: Option<u64>) {
        let side = &mut self.sides[process];
        // One that is closing still is another one; the one that is meant has not begun.
        let is_there = |player: &&Player| player.incarnation == side.incarnation;
        let Some(player) = self.players[process].as_ref().filter(is_there) else { return };
        player.signal(Signal::SIGSTOP);
        match nanos {
            None => side.hangs = true,
            Some(nanos) => {
                let until = now() + nanos;
                side.stopped_until = side.stopped_until.max(until);
                side.disturbed_until = side.disturbed_until.max(until);
                self.pauses.insert((until, process, side.incarnation));
            }
        }
    }

    fn go_on(&mut self, process: usize, incarnation: u32) {
        let Some(player) = &self.players[process] else { return };
        let side = &self.sides[process];
        // One that is told to close while it is stopped goes on, too, whoever comes after it.
        let is_due =
            side.incarnation != incarnation || (side.stopped_until <= now() && !side.hangs);
        if player.incarnation == incarnation && is_due {
            player.signal(Signal::SIGCONT);
        }
    }

    fn kill(&mut self, process: usize) {
        let side = &mut self.sides[process];
        (side.lives, side.hangs) = (false, false);
        self.restarts[process] = None;
        drop(self.players[process].take());
    }

    fn begin_anew(&mut self, process: usize) -> Result<(), String> {
        match self.restarts[process].take() {
            Some(first) if self.players[process].is_none() => self.start(process, first),
            first => {
                self.restarts[process] = first;
                Ok(())
            }
        }
    }

    /// Hears what processes say until a time, or until something is so; says whether it is.
    fn listen(&mut self, until: u64, is_so: impl Fn(&Self) -> bool) -> Result<bool, String> {
        while !is_so(self) {
            let left = Duration::from_nanos(until.saturating_sub(now()));
            match self.said.recv_timeout(left) {
                Ok(said) => self.hear(said)?,
                Err(RecvTimeoutError::Timeout) => return Ok(is_so(self)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("open: nobody is there".to_owned());
                }
            }
        }
        Ok(true)
    }

    fn wait_until(
        &mut self,
        is_so: impl Fn(&Self) -> bool,
        why: impl Fn(&Self) -> String,
    ) -> Result<(), String> {
        if self.listen(now() + PATIENCE, is_so)? { Ok(()) } else { Err(why(self)) }
    }

    fn wait_for_calls(
        &mut self,
        how: &str,
        is_judged: impl Fn(&Self, &Call) -> bool,
    ) -> Result<(), String> {
        let open = |it: &Self| it.calls.open(&it.sides, |call| is_judged(it, call));
        self.wait_until(
            |it| open(it).is_none(),
            |it| format!("stuck: {} {how}", open(it).unwrap_or_default()),
        )
    }

    fn hear(&mut self, said: Said) -> Result<(), String> {
        let Said { process, incarnation, line } = said;
        let is_present = self.sides[process].incarnation == incarnation;
        let Some(line) = line else { return self.hear_end(process, incarnation) };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let (number, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let number: u64 = number.parse().unwrap_or(u64::MAX);
        match word {
            "open" => {
                let addresses = rest.split(' ').map(str::to_owned);
                let known = self.addresses.iter_mut().skip(process);
                known.zip(addresses).for_each(|(place, address)| *place = address);
                self.has_opened[process] = is_present;
                Ok(())
            }
            "begun" => {
                self.calls.begun(number, more.parse().unwrap_or(0));
                Ok(())
            }
            "ended" => {
                let (at, how) = more.split_once(' ').unwrap_or((more, ""));
                self.calls.ended(number, at.parse().unwrap_or(0), how)
            }
            "serves" => self.calls.served(number),
            "left" => {
                self.left[process] = Some(rest.to_owned());
                Ok(())
            }
            "fail" => Err(rest.to_owned()),
            _ => Err(format!("actor: process {process} said: {line}")),
        }
    }

    /// A process ends when it is told to, or was killed.
    fn hear_end(&mut self, process: usize, incarnation: u32) -> Result<(), String> {
        let side = &self.sides[process];
        let is_present = side.incarnation == incarnation;
        if is_present && side.lives {
            return Err(format!("died: process {process} has ended by itself"));
        }
        let has_ended = |player: &mut Player| player.incarnation == incarnation;
        if let Some(player) = self.players[process].take_if(has_ended) {
            let status = player.wait();
            if status.is_none_or(|status| !status.success()) {
                return Err(format!("lost: process {process} did not close: {status:?}"));
            }
        }
        self.begin_anew(process)
    }

    /// Every process that is well calls every other one.
    fn probe(&mut self) -> Result<(), String> {
        let well = self.well();
        let mut probes = Vec::new();
        for (from, to) in well.iter().flat_map(|from| well.iter().map(move |to| (*from, *to))) {
            if from == to {
                continue;
            }
            for (kind, manner) in [(Kind::Plain, Manner::Wait), (Kind::Async, Manner::Await)] {
                let number = BEYOND + probes.len() as u64;
                let call = Call::plain(from, to, kind, manner);
                self.calls.add(number, &call, &self.sides);
                self.tell(from, &format!("probe {number}:{to}"));
                probes.push((number, self.story.processes[from - 1].calls_max < 1000));
            }
        }
        self.wait_for_calls("is a probe and does not end", |it, call| !it.sides[call.to].hangs)?;
        probes.into_iter().try_for_each(|(number, few)| self.calls.judge_probe(number, few))
    }

    /// Everything returns to zero.
    fn see_what_is_left(&mut self) -> Result<(), String> {
        let until = now() + PATIENCE;
        loop {
            self.left.fill(None);
            self.tell_all("left");
            self.wait_until(
                |it| it.well().into_iter().all(|number| it.left[number].is_some()),
                |_| "left: a process does not answer".to_owned(),
            )?;
            let is_some = |it: &usize| self.left[*it].as_deref() != Some("0 0 0 0 0");
            let Some(process) = self.well().into_iter().find(is_some) else { return Ok(()) };
            if now() > until {
                let counts = self.left[process].as_deref().unwrap_or_default();
                let what = "requests, calls, transfers, arguments and results kept, registrations";
                return Err(format!(
                    "left: process {process} has {counts} {what} when all is over"
                ));
            }
            self.listen(now() + LOOK, |_| false)?;
        }
    }

    fn close_all(&mut self) -> Result<(), String> {
        for process in self.well() {
            self.sides[process].lives = false;
            self.tell(process, "close");
        }
        let is_left = |it: &Self| it.players.iter().position(Option::is_some);
        self.wait_until(
            |it| is_left(it).is_none(),
            |it| format!("lost: process {:?} does not close", is_left(it)),
        )
    }
}
