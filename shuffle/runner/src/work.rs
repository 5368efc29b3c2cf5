//! One rank of the run.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hg_job::Job;
use hg_shuffle::{Delivery, Ranks, Shuffle, Shutdown};

use crate::{
    Error,
    aim::Aim,
    arguments::{Arguments, Skew},
    payload::{LAST, Reader, TIMED_RUN, WARM_UP, Writer},
    report::{self, OfRank},
};

/// Runs this rank; whether every message of every rank arrived once and whole.
pub(crate) fn run(job: &Job, arguments: &Arguments) -> Result<bool, Error> {
    let (me, size) = (job.rank(), job.size());
    if arguments.skew == Skew::Single && arguments.target >= size {
        let why = format!("there is no rank {}: the job has {size}", arguments.target);
        return Err(Error::Argument("target", why));
    }
    let mut ranks = Ranks::of(job, NAME);
    if let Some(nodes) = &arguments.nodes {
        nodes.check_size(size)?;
        ranks = ranks.on(Arc::new(nodes.clone()));
    }
    // Times are compared between ranks of one machine only: they begin when all are there.
    job.barrier()?;
    let begin = Instant::now();
    let reader = Arc::new(Mutex::new(Reader::new(size, begin)));
    let checking = Arc::clone(&reader);
    let delay = Duration::from_micros(arguments.delay);
    let deliver = move |Delivery { source, kind, bytes, .. }: Delivery<'_>| {
        let mut reader = checking.lock().unwrap_or_else(PoisonError::into_inner);
        match (kind, bytes.first_chunk()) {
            (LAST, Some(count)) => reader.close(source, u64::from_le_bytes(*count)),
            _ => reader.take(source, kind, bytes),
        }
        drop(reader);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
    };
    let shuffle = Shuffle::new(&ranks, NAME, arguments.options()?, deliver)?;
    let mut writer = Writer::new(arguments.size, (me, size), begin);
    let mut aim = Aim::new(arguments, me, size);
    for _ in 0..arguments.warm_up {
        let to = aim.next();
        shuffle.enqueue(to, WARM_UP, writer.next(to))?;
    }
    shuffle.flush_all()?;
    let start = Instant::now();
    let sent = send(&shuffle, arguments, &mut writer, &mut aim)?;
    shuffle.flush_all()?;
    let seconds = start.elapsed().as_secs_f64();
    for to in 0..size {
        let count = writer.numbers()[to as usize];
        shuffle.enqueue(to, LAST, &count.to_le_bytes())?;
    }
    shuffle.flush_all()?;
    let statistics = shuffle.statistics();
    shuffle.shutdown(Shutdown::Drain)?;
    let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
    let own = OfRank::new(me, (sent, seconds), &mut reader, &statistics);
    report::gather(job, arguments, own)
}

fn send(
    shuffle: &Shuffle,
    arguments: &Arguments,
    writer: &mut Writer,
    aim: &mut Aim,
) -> Result<u64, Error> {
    let limit = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut sent = 0_u64;
    loop {
        let is_over = match limit {
            // The clock is not read for every message.
            Some(limit) => sent.is_multiple_of(256) && Instant::now() >= limit,
            None => sent == arguments.count,
        };
        if is_over {
            return Ok(sent);
        }
        let to = aim.next();
        shuffle.enqueue(to, TIMED_RUN, writer.next(to))?;
        sent += 1;
    }
}

/// Of the shuffle.
const NAME: &str = "shuffle-runner";
