//! Many groups at a time: those in which every rank, or every other one, is the root of all others; and a trace of objects to all
//! groups of three, after the tenth and the ninth figure of the paper.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use hg::Address;
use hg_job_runner::say::{say, unless_closed};
use hg_multicast::{Completion, Data, Destination, Failure, Group, Multicast, Received};
use serde::Serialize;

use crate::{
    Error, NAME,
    arguments::{Pattern, Scheduled},
    network, payload,
    polled::{Ended, Polled},
    progress::{self, Seen},
    sizes,
    work::{Run, touched, wrong},
};

/// What came of one schedule.
#[derive(Debug, Serialize)]
struct Row {
    links: Option<String>,
    what: &'static str,
    members: u32,
    groups: u64,
    /// Until all groups of rank 0 had formed.
    formed_ms: f64,
    objects: u64,
    bytes: u64,
    seconds: f64,
    /// Bytes of all objects, each counted once, in a second.
    mb_per_s: f64,
    objects_per_s: f64,
    /// From the sending of an object to its last member's completion.
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    is_well: bool,
}

/// A group of this rank's.
struct Own {
    group: Group,
    /// Its place among all groups, with which its objects are filled, too.
    place: u32,
}

/// Those of which this rank is the root, and those of which it is not.
#[derive(Default)]
struct Groups {
    sends: Vec<Own>,
    receives: Vec<Own>,
    formed_ms: f64,
}

/// Every rank, or every other one, sends to all others. Collective.
pub(crate) fn overlapping(run: &Run<'_>) -> Result<bool, Error> {
    let (me, all) = (run.job.rank(), run.job.size());
    let each = if run.arguments.pattern == Pattern::Half { 2 } else { 1 };
    let roots: Vec<u32> = (0..all).step_by(each).collect();
    let mut rows = Vec::new();
    for size in &run.arguments.size {
        for block in run.arguments.blocks() {
            for scheduled in &run.arguments.schedule {
                let members = |root: u32| (0..all).map(|at| (root + at) % all).collect::<Vec<_>>();
                let lists: Vec<Vec<u32>> = roots.iter().map(|root| members(*root)).collect();
                let groups = form(run, &lists, *scheduled, block)?;
                let count = run.arguments.count;
                let own = roots.iter().position(|root| *root == me);
                let objects: Vec<(usize, u64)> =
                    own.iter().flat_map(|at| (0..count).map(|_| (*at, size.0))).collect();
                let all_objects = roots.len() as u64 * u64::from(count);
                let total = (all_objects, all_objects * size.0);
                rows.push(play(run, *scheduled, groups, lists.len(), &objects, total)?);
            }
        }
    }
    finish(run, &rows)
}

/// Rank 0 sends objects of log-normal sizes to groups of three others. Collective.
pub(crate) fn trace(run: &Run<'_>) -> Result<bool, Error> {
    let all = run.job.size();
    let mut lists = Vec::new();
    for a in 1..all {
        for b in a + 1..all {
            lists.extend((b + 1..all).map(|c| vec![0, a, b, c]));
        }
    }
    let objects = sizes::trace(run.arguments.count, lists.len(), run.arguments.scale);
    let total = (objects.len() as u64, objects.iter().map(|(_, size)| size).sum());
    let own: &[(usize, u64)] = if run.job.rank() == 0 { &objects } else { &[] };
    let mut rows = Vec::new();
    for scheduled in &run.arguments.schedule {
        let block = run.arguments.blocks()[0];
        let groups = form(run, &lists, *scheduled, block)?;
        rows.push(play(run, *scheduled, groups, lists.len(), own, total)?);
    }
    finish(run, &rows)
}

/// Those groups in whose list this rank is.
fn form(
    run: &Run<'_>,
    lists: &[Vec<u32>],
    scheduled: Scheduled,
    block: Option<u64>,
) -> Result<Groups, Error> {
    run.tell(&format!("{}: {} groups", scheduled.name(), lists.len()));
    let ids = Multicast::ids_of_job(run.job, lists.len())?;
    let mut groups = Groups::default();
    run.job.barrier()?;
    let start = Instant::now();
    for (place, (list, id)) in (0_u32..).zip(lists.iter().zip(ids)) {
        let Some(own) = list.iter().position(|rank| *rank == run.job.rank()) else { continue };
        let addresses: Vec<Address> =
            list.iter().map(|rank| run.addresses[*rank as usize].clone()).collect();
        let options = run.arguments.options(scheduled, block);
        let allocate = |_: hg_multicast::Incoming<'_>| Ok(Destination::Allocate);
        let own = u32::try_from(own).expect("a list has at most all ranks");
        let group = run.multicast.group(id, &addresses, own, options, allocate)?;
        let list = if own == 0 { &mut groups.sends } else { &mut groups.receives };
        list.push(Own { group, place });
    }
    for own in groups.sends.iter().chain(&groups.receives) {
        own.group.joined().wait()?;
    }
    groups.formed_ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(groups)
}

/// What all ranks send: objects, and their bytes.
type Total = (u64, u64);

/// Sends this rank's objects, checks what comes, closes all groups. `objects`: the place of the group of each, and its size.
fn play(
    run: &Run<'_>,
    scheduled: Scheduled,
    Groups { sends, receives, formed_ms }: Groups,
    count: usize,
    objects: &[(usize, u64)],
    (all_objects, bytes): Total,
) -> Result<Row, Error> {
    run.job.barrier()?;
    let start = Instant::now();
    let receiving = thread::Builder::new().name("receiver".to_owned());
    let receiving = receiving.spawn(|| receive(receives)).map_err(Error::Thread)?;
    // Where that fails, nobody waits for what does not come any more: the process ends.
    let latencies = send(run, sends, objects)?;
    let is_right = receiving.join().expect("receiving does not panic")?;
    let seconds = start.elapsed().as_secs_f64();
    let told = run.job.all_gather(&serde_json::to_vec(&(seconds, is_right, &latencies))?)?;
    let told = told.iter().map(|bytes| serde_json::from_slice(bytes));
    let told = told.collect::<Result<Vec<(f64, bool, Vec<f64>)>, _>>()?;
    let mut latencies: Vec<f64> =
        told.iter().flat_map(|(.., latencies)| latencies).copied().collect();
    latencies.sort_by(f64::total_cmp);
    let seconds = told.iter().map(|(seconds, ..)| *seconds).fold(0.0, f64::max);
    let [p50_ms, p90_ms, p99_ms, max_ms] =
        [50, 90, 99, 100].map(|part| percentile(&latencies, part) * 1e3);
    Ok(Row {
        links: run.arguments.link.map(network::described),
        what: scheduled.name(),
        members: run.job.size(),
        groups: count as u64,
        formed_ms,
        objects: all_objects,
        bytes,
        seconds,
        mb_per_s: float(bytes) / 1e6 / seconds,
        objects_per_s: float(all_objects) / seconds,
        p50_ms,
        p90_ms,
        p99_ms,
        max_ms,
        is_well: told.iter().all(|(_, is_right, _)| *is_right),
    })
}

/// Sends, a few at a time, and closes the groups; the time of each object.
fn send(run: &Run<'_>, groups: Vec<Own>, objects: &[(usize, u64)]) -> Result<Vec<f64>, Error> {
    let queue = run.arguments.queue as usize;
    let by_place: HashMap<usize, &Own> =
        groups.iter().map(|own| (own.place as usize, own)).collect();
    let mut numbers: HashMap<usize, u64> = HashMap::new();
    let mut waiting: VecDeque<&(usize, u64)> = objects.iter().collect();
    let mut free: Vec<usize> = (0..queue).collect();
    let mut begun = vec![Instant::now(); queue];
    let mut under_way: Polled<Completion<Result<(), Failure>>> = Polled::new();
    let mut latencies = Vec::new();
    let sent = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let seen = Arc::clone(&sent);
    let shown = progress::start(run.job, objects.len() as u64, move || {
        let [objects, bytes] = [0, 1].map(|at| seen[at].load(Ordering::Relaxed));
        Seen { objects, bytes }
    })?;
    loop {
        while let Some(place) = free.pop() {
            let Some((at, size)) = waiting.pop_front() else { break };
            let (own, number) = (by_place[at], numbers.entry(*at).or_default());
            let mut bytes = touched(*size);
            payload::fill(&mut bytes, own.place, *number);
            *number += 1;
            begun[place] = Instant::now();
            sent[1].fetch_add(*size, Ordering::Relaxed);
            under_way.put(place, own.group.send(bytes, &[])?);
        }
        let Some(Ended { place, output: outcome, at }) = under_way.next() else { break };
        outcome?;
        sent[0].fetch_add(1, Ordering::Relaxed);
        // Meanwhile this thread may have filled others.
        latencies.push(at.saturating_duration_since(begun[place]).as_secs_f64());
        free.push(place);
    }
    drop(shown);
    close(groups)?;
    Ok(latencies)
}

/// Checks what comes until all groups are closed; whether all of it was right.
fn receive(groups: Vec<Own>) -> Result<bool, Error> {
    let mut coming = Polled::new();
    for (at, own) in groups.iter().enumerate() {
        coming.put(at, own.group.receive());
    }
    let mut is_right = true;
    while let Some(Ended { place: at, output: received, .. }) = coming.next() {
        let Some(received) = received? else { continue };
        is_right &= check(&received, groups[at].place)?;
        coming.put(at, groups[at].group.receive());
    }
    drop(coming);
    close(groups)?;
    Ok(is_right)
}

fn close(groups: Vec<Own>) -> Result<(), Failure> {
    let closing: Vec<_> = groups.into_iter().map(|own| own.group.close()).collect();
    closing.into_iter().try_for_each(Completion::wait)
}

fn check(received: &Received, place: u32) -> Result<bool, Error> {
    let at = match &received.data {
        Data::Memory(memory) => wrong(memory, place, received.number)?,
        Data::Bytes(bytes) => payload::wrong(bytes, 0, place, received.number),
        Data::Frozen(bytes) => payload::wrong(bytes, 0, place, received.number),
        Data::Registered(_) | Data::Blocks(_) => return Ok(false),
    };
    if let Some(at) = at {
        say(&format!("{NAME}: byte {at} of object {} of group {place} is wrong", received.number));
    }
    Ok(at.is_none())
}

fn percentile(sorted: &[f64], part: usize) -> f64 {
    let at = (sorted.len() * part / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

fn finish(run: &Run<'_>, rows: &[Row]) -> Result<bool, Error> {
    if run.job.rank() == 0 {
        unless_closed(print(rows, run.arguments.json)).map_err(Error::Print)?;
    }
    Ok(rows.iter().all(|row| row.is_well))
}

fn print(rows: &[Row], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        return out.flush();
    }
    if let Some(links) = rows.first().and_then(|row| row.links.as_ref()) {
        writeln!(out, "{links}")?;
    }
    writeln!(out, "{HEAD}")?;
    for row in rows {
        writeln!(
            out,
            "{:<12} {:>4} {:>7} {:>8.1} {:>8} {:>14} {:>9.3} {:>9.1} {:>10.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
            row.what,
            row.members,
            row.groups,
            row.formed_ms,
            row.objects,
            row.bytes,
            row.seconds,
            row.mb_per_s,
            row.objects_per_s,
            row.p50_ms,
            row.p90_ms,
            row.p99_ms,
            row.max_ms,
        )?;
    }
    if rows.iter().all(|row| row.is_well) {
        writeln!(out, "every byte of every object was verified at every receiver")?;
    }
    out.flush()
}

#[expect(clippy::cast_precision_loss, reason = "bytes below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

const HEAD: &str = "\
bytes of all objects, each counted once, and their times until the last member had them
what            n  groups  form ms  objects          bytes   seconds      MB/s  objects/s    p50 ms    p90 ms    p99 ms    max ms";
