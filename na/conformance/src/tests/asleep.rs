//! What is posted between a `true` of `may_sleep` and the end of the wait: what needs further progress
//! of its own side ends that wait by itself, and everything else happens beside it.
//!
//! The driver in these tests never polls on its own: between two rounds of progress it sleeps, whenever
//! it may. Each operation is posted both before the wait begins and while another thread is in it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use hg_na::{Error, GoneReason, Memory, Message, Op, OpId, Peer, Region, Rights};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    patience::Patience,
    suite::Suite,
    tests::{
        room,
        sleeping::{longest, never_sleeps, post_driven, sleep, sleeps, wait},
    },
    world::{A, B, World, pattern},
};

/// Each operation is tried so often before a wait, and as often during one.
const ROUNDS: u64 = 4;
/// A timer of the plugin's own that is due within this time passes before the sleep, but no more than
/// so many of them.
const TIMER_NEAR: Duration = Duration::from_millis(200);
const TIMERS_MAX: usize = 4;
/// Rounds of progress without help of the peer after which a send counts as stuck.
const STUCK_AFTER: usize = 50;
/// Messages that one peer may be sent before it takes any.
const FILL_MAX: usize = 65_536;
/// Bytes of a put or get.
const TRANSFER: usize = 5000;

/// When something is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    BeforeTheWait,
    DuringTheWait,
}

const ALWAYS: [When; 2] = [When::BeforeTheWait, When::DuringTheWait];

/// Progresses until the context agrees to sleep and no timer of its own is near, which would end the
/// sleep in place of what is to end it.
fn fall_asleep(node: &mut Node, patience: Patience) -> Outcome {
    let (mut clock, mut timers) = (patience.start(), 0);
    loop {
        let moved = node.progress()?;
        if node.context.may_sleep() {
            let limit = longest(node, patience);
            if limit >= TIMER_NEAR.min(patience.sleep) || timers == TIMERS_MAX {
                return Ok(());
            }
            timers += 1;
            let waited = node.context.waiter().wait(Some(limit));
            waited.map_err(|error| format!("a wait failed: {error}"))?;
        } else {
            ensure!(clock.patient(moved), "{}: it never agrees to sleep", node.name);
        }
    }
}

/// Lets a context agree to sleep, acts, and returns from the wait.
fn asleep(
    node: &mut Node,
    patience: Patience,
    when: When,
    act: impl FnOnce(&mut Node) -> Outcome,
) -> Outcome {
    fall_asleep(node, patience)?;
    if when == When::BeforeTheWait {
        act(node)?;
        return sleep(node, patience);
    }
    let (waiter, limit, name) = (node.context.waiter(), longest(node, patience), node.name);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let sleeper = Arc::clone(&waiter);
        let sleeper = scope.spawn(move || {
            // The other end waits for this word.
            let _ = tell.send(());
            wait(sleeper.as_ref(), limit, patience, name)
        });
        // Mostly the other thread is in the wait then; just before it is as good.
        told.recv().map_err(|_| "the sleeping thread is gone")?;
        for _ in 0..100 {
            std::thread::yield_now();
        }
        let acted = act(node);
        if acted.is_err() {
            waiter.wake();
        }
        let slept = sleeper.join().map_err(|_| "the sleeping thread panicked")?;
        acted.and(slept)
    })
}

/// Progresses one context by sleeping, and only when it may not by asking again.
fn sleep_until(
    node: &mut Node,
    patience: Patience,
    mut holds: impl FnMut(&mut Node) -> bool,
) -> Outcome {
    let mut clock = patience.start();
    loop {
        let moved = node.progress()?;
        if holds(node) {
            return Ok(());
        }
        if node.context.may_sleep() {
            sleep(node, patience)?;
        } else {
            ensure!(clock.patient(moved), "{}: what was posted never completed", node.name);
        }
    }
}

/// Posts while asleep, then drops `go`, and sleeps until everything has completed. Answers how many
/// operations ended because they had been cancelled before.
fn post_asleep(
    node: &mut Node,
    patience: Patience,
    when: When,
    ops: Vec<Op>,
    go: Option<mpsc::Sender<()>>,
) -> Outcome<usize> {
    let (mut ops, mut go) = (VecDeque::from(ops), go);
    while !ops.is_empty() {
        asleep(node, patience, when, |node| {
            while let Some(op) = ops.pop_front() {
                match node.post(op)? {
                    Ok(_) => {}
                    Err(rejected) if matches!(rejected.error, Error::Again) => {
                        // It needs progress, and is posted again in the next sleep.
                        ops.push_front(rejected.op);
                        node.context.waiter().wake();
                        break;
                    }
                    Err(rejected) => fail!("a post beside a sleep: {}", rejected.error),
                }
            }
            drop(go.take());
            Ok(())
        })?;
    }
    sleep_until(node, patience, |node| node.pending() == 0)?;
    let mut cancelled = 0;
    for done in node.done.drain(..) {
        match &done.result {
            Ok(()) => {}
            Err(failure) if matches!(failure.error, Error::Cancelled) => cancelled += 1,
            Err(_) => fail!("what was posted beside a sleep ended in {done:?}"),
        }
    }
    Ok(cancelled)
}

/// Runs `body` beside another thread, which serves B from the moment on when the sender is dropped.
/// B sleeps too, and answers requests of eight bytes under the tag in them. Answers what the body
/// did, and how many requests came.
fn beside_a_server<T>(
    world: &mut World<'_>,
    body: impl FnOnce(&mut Node, mpsc::Sender<()>) -> Outcome<T>,
) -> Outcome<(T, usize)> {
    let patience = world.suite.patience;
    let [a, b] = world.nodes.as_mut_slice() else { fail!("a world of two") };
    let (waiter, stop) = (b.context.waiter(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (go, gone) = mpsc::channel::<()>();
        let server = scope.spawn(|| {
            // Nothing is ever sent: it ends when the sender is dropped.
            let _ = gone.into_iter().next();
            serve(b, patience, &stop)
        });
        let verdict = body(a, go);
        // Release: pairs with the load in `serve`.
        stop.store(true, Ordering::Release);
        waiter.wake();
        let served = server.join().map_err(|_| "the serving thread panicked")?;
        Ok((verdict?, served?))
    })
}

fn serve(node: &mut Node, patience: Patience, stop: &AtomicBool) -> Outcome<usize> {
    let mut served = 0;
    loop {
        node.progress()?;
        while let Some((to, message)) = node.unexpected.pop_front() {
            served += 1;
            let Ok(tag) = <[u8; 8]>::try_from(message.as_slice()) else { continue };
            let op = Op::SendExpected { to, tag: u64::from_le_bytes(tag), message };
            post_driven(node, patience, op)?;
        }
        node.control.clear();
        node.done.clear();
        // Acquire: pairs with the store of whoever stops it.
        if stop.load(Ordering::Acquire) {
            return Ok(served);
        }
        if node.context.may_sleep() {
            sleep(node, patience)?;
        }
    }
}

/// Memory of both sides, where put and get exist.
struct Transfers {
    here: Region,
    there: Region,
}

impl Transfers {
    fn new(world: &World<'_>) -> Outcome<Option<Self>> {
        if !world.nodes[A].caps().one_sided {
            return Ok(None);
        }
        let register = |place: usize| {
            let memory = Memory::from(pattern(TRANSFER, place as u64));
            let region = world.nodes[place].domain.register(memory, Rights::all());
            region.map_err(|error| format!("memory was not registered: {error}"))
        };
        Ok(Some(Self { here: register(A)?, there: register(B)? }))
    }

    fn op(&self, peer: Peer, put: bool) -> Outcome<Op> {
        let local = self.here.slice(0, TRANSFER as u64).map_err(|error| error.to_string())?;
        let remote = self.there.descriptor().slice(0, TRANSFER as u64);
        let remote = remote.map_err(|error| error.to_string())?;
        Ok(if put {
            Op::Put { to: peer, local, remote }
        } else {
            Op::Get { from: peer, local, remote }
        })
    }
}

/// A request and the receive for its answer.
fn call(peer: Peer, tag: u64) -> Vec<Op> {
    let message = Message::copied(&tag.to_le_bytes());
    vec![Op::RecvExpected { from: peer, tag }, Op::SendUnexpected { to: peer, message }]
}

/// Operations of each kind, one list each; only those of the first need an answer.
fn kinds(peer: Peer, tag: u64, transfers: Option<&Transfers>) -> Outcome<Vec<Vec<Op>>> {
    let message = || Message::copied(b"posted beside a sleep");
    let mut kinds = vec![
        call(peer, tag),
        vec![Op::SendUnexpected { to: peer, message: message() }],
        vec![Op::SendControl { to: peer, message: message() }],
        vec![Op::SendExpected { to: peer, tag, message: message() }],
    ];
    if let Some(transfers) = transfers {
        kinds.push(vec![transfers.op(peer, true)?]);
        kinds.push(vec![transfers.op(peer, false)?]);
    }
    Ok(kinds)
}

pub(crate) fn posts_to_a_fresh_peer_end_a_sleep(suite: &Suite) -> Outcome {
    for when in ALWAYS {
        let mut kind = 0;
        loop {
            let mut world = World::new(suite, 2)?;
            if !sleeps(&world) {
                return never_sleeps(world);
            }
            let transfers = Transfers::new(&world)?;
            let address = world.nodes[B].address();
            let fresh = world.nodes[A].lookup(&address)?;
            let Some(ops) = kinds(fresh, 1, transfers.as_ref())?.into_iter().nth(kind) else {
                break;
            };
            beside_a_server(&mut world, |a, go| {
                drop(go);
                post_asleep(a, suite.patience, when, ops, None)
            })?;
            drop(transfers);
            world.close(B);
            world.gone(A, fresh)?;
            world.end()?;
            kind += 1;
        }
    }
    Ok(())
}

pub(crate) fn posts_to_an_open_peer_get_under_way_beside_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    let transfers = Transfers::new(&world)?;
    let (tags, served) = beside_a_server(&mut world, |a, go| {
        drop(go);
        for tag in 0..2 * ROUNDS {
            let when = ALWAYS[usize::from(tag < ROUNDS)];
            // What is under way need not end the wait: an answer follows, which does.
            let mut ops = call(to_b, tag);
            let message = Message::copied(&tag.to_le_bytes());
            ops.insert(0, Op::SendControl { to: to_b, message });
            if let Some(transfers) = &transfers {
                ops.insert(0, transfers.op(to_b, tag % 2 == 0)?);
            }
            post_asleep(a, suite.patience, when, ops, None)?;
        }
        Ok(2 * ROUNDS)
    })?;
    ensure!(served as u64 == tags, "{served} of {tags} requests came");
    drop(transfers);
    world.close(B);
    world.gone(A, to_b)?;
    world.end()
}

/// Sends until one send is stuck, because the peer takes none: how many were accepted, and that one.
fn fill(node: &mut Node, to: Peer, len: usize) -> Outcome<(usize, Option<OpId>)> {
    let (mut accepted, mut refusals) = (0, 0);
    while accepted < FILL_MAX && refusals < STUCK_AFTER {
        let message = Message::from(vec![7; len]);
        let Ok((token, id)) = node.post(Op::SendUnexpected { to, message })? else {
            node.progress()?;
            refusals += 1;
            continue;
        };
        (accepted, refusals) = (accepted + 1, 0);
        let mut left = STUCK_AFTER;
        while node.take_done_of(token).is_none() {
            node.progress()?;
            left -= 1;
            if left == 0 {
                return Ok((accepted, Some(id)));
            }
        }
    }
    Ok((accepted, None))
}

/// Posts one more behind as many as B takes without progress, and only then lets B drain them.
/// `exactly`: the send that is stuck is taken back first, so that nothing waits when A falls asleep.
fn post_behind(world: &mut World<'_>, to: Peer, when: When, len: usize, exactly: bool) -> Outcome {
    let patience = world.suite.patience;
    let (accepted, stuck) = fill(&mut world.nodes[A], to, len)?;
    if let (true, Some(id)) = (exactly, stuck) {
        world.nodes[A].context.cancel(id);
    }
    let ops = vec![Op::SendUnexpected { to, message: Message::from(vec![7; len]) }];
    let (cancelled, served) =
        beside_a_server(world, |a, go| post_asleep(a, patience, when, ops, Some(go)))?;
    let least = accepted + 1 - cancelled;
    let mut came = 0;
    world.until("everything that was sent arrived", |nodes| {
        came = served + nodes[B].unexpected.len();
        Ok(came >= least)
    })?;
    world.nodes[B].unexpected.clear();
    // A cancelled send may have been on its way.
    ensure!(came <= accepted + 1, "{came} messages came, {accepted} and one were sent");
    Ok(())
}

pub(crate) fn a_post_behind_full_queues_is_sent_when_the_peer_drains(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    for len in [40, world.nodes[A].caps().max_unexpected] {
        for when in ALWAYS {
            post_behind(&mut world, to_b, when, len, false)?;
            post_behind(&mut world, to_b, when, len, true)?;
        }
    }
    world.close(B);
    world.gone(A, to_b)?;
    world.nodes[A].done.clear();
    world.end()
}

pub(crate) fn room_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    for when in ALWAYS {
        let a = &mut world.nodes[A];
        // Quiet ones: no completion of theirs ends the sleep.
        let post = |a: &mut Node| {
            let op = Op::SendUnexpected { to: to_b, message: Message::copied(b"fills a queue") };
            match a.post_quiet(op)? {
                Ok(_) => Ok(true),
                Err(rejected) if matches!(rejected.error, Error::Again) => Ok(false),
                Err(rejected) => fail!("a full queue refuses with {:?}", rejected.error),
            }
        };
        room::fill(a, post)?;
        beside_a_server(&mut world, |a, go| {
            asleep(a, suite.patience, when, |a| {
                // Refused once more, beside the sleep.
                while post(a)? {}
                drop(go);
                Ok(())
            })?;
            sleep_until(a, suite.patience, |a| !a.rooms.is_empty())
        })?;
        world.nodes[A].rooms.clear();
    }
    world.close(B);
    world.gone(A, to_b)?;
    world.end()
}

pub(crate) fn a_flush_that_ends_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    for when in ALWAYS {
        let a = &mut world.nodes[A];
        // Quiet ones: no completion of theirs ends the sleep.
        room::fill(a, |a| {
            let op = Op::SendUnexpected { to: to_b, message: Message::copied(b"fills a queue") };
            Ok(a.post_quiet(op)?.is_ok())
        })?;
        beside_a_server(&mut world, |a, go| {
            asleep(a, suite.patience, when, |a| {
                ensure!(!a.context.flush(), "a flush ended beside a full queue");
                drop(go);
                Ok(())
            })?;
            sleep_until(a, suite.patience, |a| a.context.flush())
        })?;
        world.nodes[A].rooms.clear();
    }
    world.close(B);
    world.gone(A, to_b)?;
    world.end()
}

pub(crate) fn a_cancel_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    let (to_b, _) = world.connect(A, B)?;
    for tag in 0..2 * ROUNDS {
        let when = ALWAYS[usize::from(tag < ROUNDS)];
        let (token, id) = world.receive(A, to_b, tag)?;
        let a = &mut world.nodes[A];
        asleep(a, suite.patience, when, |a| {
            a.context.cancel(id);
            Ok(())
        })?;
        sleep_until(a, suite.patience, |a| a.pending() == 0)?;
        let done = a.take_done_of(token);
        let failure = done.as_ref().and_then(|done| done.result.as_ref().err());
        let proper = failure.is_some_and(|failure| matches!(failure.error, Error::Cancelled));
        ensure!(proper, "a receive cancelled beside a sleep ended in {done:?}");
    }
    world.end()
}

pub(crate) fn a_forget_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !sleeps(&world) {
        return never_sleeps(world);
    }
    for tag in 0..2 * ROUNDS {
        let when = ALWAYS[usize::from(tag < ROUNDS)];
        let (to_b, to_a) = world.connect(A, B)?;
        world.receive(A, to_b, tag)?;
        beside_a_server(&mut world, |a, go| {
            drop(go);
            asleep(a, suite.patience, when, |a| {
                a.context.forget(to_b);
                Ok(())
            })?;
            sleep_until(a, suite.patience, |a| a.gone.contains_key(&to_b))
        })?;
        let reason = &world.nodes[A].gone[&to_b];
        ensure!(*reason == GoneReason::Forgotten, "a forgotten peer is reported as {reason:?}");
        world.gone(B, to_a)?;
    }
    world.end()
}
