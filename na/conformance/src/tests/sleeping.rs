//! Sentence 13: idle means no CPU, and nothing that arrives is slept through.

use std::{
    os::fd::AsFd as _,
    sync::mpsc,
    time::{Duration, Instant},
};

use hg_na::{Message, Op, Peer, Sleep, Waiter};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    node::Node,
    outcome::{Outcome, ensure},
    patience::Patience,
    random::Random,
    suite::Suite,
    world::{A, B, World},
};

/// Round trips of the lost wake-up hunt.
const ROUND_TRIPS: u64 = 3000;
/// How long an idle context is watched, and one wait of it.
const IDLE: Duration = Duration::from_millis(100);
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// Waits that may return early for no reason while it is watched.
const EARLY_RETURNS: u32 = 10;
/// Times in a row that `may_sleep` may say no while nothing is left to do.
const RESTLESS_MAX: u32 = 100_000;

pub(crate) fn sleeps(world: &World<'_>) -> bool {
    world.nodes[A].caps().sleep != Sleep::Poll
}

/// A context without sleep must never promise a wake-up.
pub(crate) fn never_sleeps(mut world: World<'_>) -> Outcome {
    world.connect(A, B)?;
    for _ in 0..100 {
        world.round()?;
        ensure!(!world.nodes[A].context.may_sleep(), "Caps say Poll, but may_sleep says true");
    }
    world.end()
}

/// How long a driver sleeps: no longer than the plugin's own deadline.
pub(crate) fn longest(node: &Node, patience: Patience) -> Duration {
    let due = node.context.next_deadline();
    let due = due.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    due.map_or(patience.sleep, |due| due.min(patience.sleep))
}

/// Sleeps once; only the plugin's own deadline may be slept up to.
pub(crate) fn wait(
    waiter: &dyn Waiter,
    limit: Duration,
    patience: Patience,
    name: &str,
) -> Outcome {
    let started = Instant::now();
    waiter.wait(Some(limit)).map_err(|error| format!("a wait failed: {error}"))?;
    let slept = limit == patience.sleep && started.elapsed() >= limit;
    ensure!(!slept, "{name}: slept through what arrived");
    Ok(())
}

/// Sleeps once, as a driver does.
pub(crate) fn sleep(node: &Node, patience: Patience) -> Outcome {
    wait(node.context.waiter().as_ref(), longest(node, patience), patience, node.name)
}

/// Progresses one context by sleeping whenever it may, until the condition holds.
pub(crate) fn drive(
    node: &mut Node,
    patience: Patience,
    random: &mut Random,
    mut holds: impl FnMut(&mut Node) -> bool,
) -> Outcome {
    let mut clock = patience.start();
    loop {
        let moved = node.progress()?;
        if holds(node) {
            return Ok(());
        }
        for _ in 0..random.below(300) {
            std::hint::spin_loop();
        }
        // Sometimes it polls once more, sometimes it hesitates between question and sleep.
        if random.below(4) > 0 && node.context.may_sleep() {
            for _ in 0..random.below(300) {
                std::hint::spin_loop();
            }
            sleep(node, patience)?;
        } else {
            ensure!(clock.patient(moved), "{}: what should have arrived did not", node.name);
        }
    }
}

pub(crate) fn post_driven(node: &mut Node, patience: Patience, op: Op) -> Outcome {
    let mut op = op;
    let mut clock = patience.start();
    loop {
        match node.post(op)? {
            Ok(_) => return Ok(()),
            Err(rejected) => op = rejected.op,
        }
        let moved = node.progress()?;
        ensure!(clock.patient(moved), "{}: a post was refused for ever", node.name);
    }
}

fn rally(node: &mut Node, peer: Peer, serves: bool, patience: Patience, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    for round in 0..ROUND_TRIPS {
        let message = Message::copied(&round.to_le_bytes());
        let op = Op::SendUnexpected { to: peer, message };
        let mut op = Some(op);
        if serves {
            post_driven(node, patience, op.take().expect("made above"))?;
        }
        drive(node, patience, &mut random, |node| !node.unexpected.is_empty())?;
        let arrived = node.unexpected.pop_front();
        let right = arrived.is_some_and(|(_, message)| message.as_slice() == round.to_le_bytes());
        ensure!(right, "{}: round {round} brought another message", node.name);
        if let Some(op) = op {
            post_driven(node, patience, op)?;
        }
        node.done.clear();
    }
    drive(node, patience, &mut random, |node| node.pending() == 0)
}

pub(crate) fn two_sleeping_threads_never_lose_a_wake_up(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, to_a) = world.connect(A, B)?;
    let mut b = world.nodes.pop().expect("two nodes");
    let mut a = world.nodes.pop().expect("two nodes");
    let patience = suite.patience;
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| rally(&mut b, to_a, false, patience, 11));
        let first = rally(&mut a, to_b, true, patience, 12);
        (first, second.join().map_err(|_| "a thread panicked".to_owned()))
    });
    first?;
    second??;
    world.nodes.extend([a, b]);
    world.end()
}

pub(crate) fn what_arrived_before_the_question_is_not_slept_through(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, to_a) = world.connect(A, B)?;
    for round in 0..100u64 {
        let answer = round % 2 == 0;
        let message = Message::copied(&round.to_le_bytes());
        let (token, op) = if answer {
            let token = world.receive(B, to_a, round)?.0;
            (Some(token), Op::SendExpected { to: to_b, tag: round, message })
        } else {
            (None, Op::SendUnexpected { to: to_b, message })
        };
        // B is settled, then something comes while it is not asked.
        while world.round()? {}
        let (send, _) = world.post(A, op)?;
        let mut clock = suite.patience.start();
        while world.nodes[A].take_done_of(send).is_none() && clock.patient(false) {
            world.nodes[A].progress()?;
        }
        if world.nodes[B].context.may_sleep() {
            sleep(&world.nodes[B], suite.patience)?;
        }
        drive(&mut world.nodes[B], suite.patience, &mut Random::new(round), |node| match token {
            Some(token) => node.take_done_of(token).is_some(),
            None => node.unexpected.pop_front().is_some(),
        })?;
    }
    world.end()
}

pub(crate) fn an_idle_context_sleeps_and_stays_asleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    world.connect(A, B)?;
    let (back, _) = world.connect(B, A)?;
    world.receive(B, back, 1)?;
    stays_asleep(&mut world.nodes[B])?;
    world.nodes[B].context.forget(back);
    world.end()
}

/// Waits that a context which sleeps in steps may have more, while they grow.
const STEPS: u32 = 400;

/// One that has nothing to do agrees to sleep, and its waits end by their timeouts alone, or in steps that grow.
pub(super) fn stays_asleep(node: &mut Node) -> Outcome {
    let (mut waits, mut restless, started) = (0, 0, Instant::now());
    while started.elapsed() < IDLE {
        let moved = node.progress()?;
        if moved || !node.context.may_sleep() {
            restless += 1;
            ensure!(restless < RESTLESS_MAX, "an idle context never agrees to sleep");
            continue;
        }
        node.context.waiter().wait(Some(IDLE_WAIT)).map_err(|error| error.to_string())?;
        waits += 1;
    }
    let early = if matches!(node.caps().sleep, Sleep::Steps(_)) { STEPS } else { EARLY_RETURNS };
    let most = u32::try_from(IDLE.as_millis() / IDLE_WAIT.as_millis()).expect("ten") + early;
    ensure!(waits > 0, "an idle context never agreed to sleep");
    ensure!(waits <= most, "{waits} waits of {IDLE_WAIT:?} ended within {IDLE:?}");
    Ok(())
}

pub(crate) fn wake_ends_a_wait_from_any_thread(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    world.connect(A, B)?;
    let waiter = world.nodes[A].context.waiter();
    for round in 0..200 {
        while world.nodes[A].progress()? || !world.nodes[A].context.may_sleep() {}
        // Before the question it ends the sleep that the question allows, by whatever is slept on.
        waiter.wake();
        if world.nodes[A].context.may_sleep() {
            match waiter.fd() {
                Some(fd) if round % 4 < 2 => {
                    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
                    let limit = PollTimeout::try_from(suite.patience.sleep);
                    let ready = poll(&mut fds, limit.map_err(|error| error.to_string())?);
                    let ready = ready.map_err(|error| error.to_string())?;
                    ensure!(
                        ready > 0,
                        "slept on the descriptor through a wake before the question"
                    );
                    waiter.wait(Some(Duration::ZERO)).map_err(|error| error.to_string())?;
                }
                _ => sleep(&world.nodes[A], suite.patience)?,
            }
        }
        while world.nodes[A].progress()? || !world.nodes[A].context.may_sleep() {}
        let (tell, told) = mpsc::channel();
        let other = std::sync::Arc::clone(&waiter);
        let waker = std::thread::spawn(move || {
            if told.recv().is_ok() {
                other.wake();
            }
        });
        // In every other round the wake comes first: it ends the next wait.
        tell.send(()).map_err(|_| "the waking thread is gone")?;
        if round % 2 == 0 {
            waker.join().map_err(|_| "the waking thread panicked")?;
            sleep(&world.nodes[A], suite.patience)?;
        } else {
            sleep(&world.nodes[A], suite.patience)?;
            waker.join().map_err(|_| "the waking thread panicked")?;
        }
    }
    world.end()
}

pub(crate) fn a_closing_peer_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    world.receive(A, to_b, 1)?;
    let b = world.nodes.pop();
    let closer = std::thread::spawn(move || drop(b));
    let gone = |node: &mut Node| node.gone.contains_key(&to_b);
    drive(&mut world.nodes[A], suite.patience, &mut Random::new(5), gone)?;
    closer.join().map_err(|_| "closing panicked")?;
    world.end()
}

pub(crate) fn credits_that_come_back_end_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    let mut posted = 0;
    while posted < 100_000 {
        let message = Message::copied(b"one of many");
        if world.nodes[A].post(Op::SendUnexpected { to: to_b, message })?.is_err() {
            break;
        }
        world.nodes[A].progress()?;
        posted += 1;
    }
    let mut b = world.nodes.pop().expect("two nodes");
    let patience = suite.patience;
    let taker = std::thread::spawn(move || {
        let mut random = Random::new(6);
        drive(&mut b, patience, &mut random, |node| node.unexpected.len() >= posted)?;
        b.unexpected.clear();
        Outcome::Ok(b)
    });
    drive(&mut world.nodes[A], patience, &mut Random::new(7), |node| node.pending() == 0)?;
    let b = taker.join().map_err(|_| "the taking thread panicked")??;
    world.nodes.push(b);
    world.end()
}

pub(crate) fn the_descriptor_becomes_readable_for_a_foreign_event_loop(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let waiter = world.nodes[B].context.waiter();
    let has = waiter.fd().is_some();
    let promised = world.nodes[B].caps().sleep == Sleep::Descriptor;
    ensure!(has == promised, "Caps::sleep and Waiter::fd disagree about a descriptor");
    let Some(fd) = waiter.fd() else { return world.end() };
    let patience = suite.patience.sleep;
    for round in 0..100u64 {
        while world.round()? {}
        let sent = round % 2 == 0;
        if !sent {
            // It says no while something is to be done: a word beside the messages is looked at when this is asked.
            world.until("B may sleep", |nodes| Ok(nodes[B].context.may_sleep()))?;
            waiter.wake();
        } else {
            world.send(A, to_b, &round.to_le_bytes())?;
            if !world.nodes[B].context.may_sleep() {
                world.arrival(B)?;
                continue;
            }
            // Nothing arrived yet: it is sent while B is said to sleep.
            for _ in 0..8 {
                world.nodes[A].progress()?;
            }
        }
        let now = Instant::now();
        let due = world.nodes[B].context.next_deadline();
        let due = due.map_or(patience, |due| due.saturating_duration_since(now).min(patience));
        let limit = PollTimeout::try_from(due).map_err(|error| error.to_string())?;
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, limit).map_err(|error| error.to_string())?;
        ensure!(ready > 0 || due < patience, "the descriptor did not become readable");
        // Whoever slept on the descriptor collects its events before the next progress.
        waiter.wait(Some(Duration::ZERO)).map_err(|error| error.to_string())?;
        if sent {
            world.arrival(B)?;
        }
    }
    world.end()
}
