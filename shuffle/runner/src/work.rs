//! One rank of the run.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use hg_job::{Job, Local};
use hg_job_runner::{plot, process::cpu_seconds, program::Verdict, say, watch::Watch};
use hg_shuffle::{Delivery, Error as ShuffleError, Group as _, Ranks, Sender, Shuffle, Shutdown};

use crate::{
    Error,
    aim::Aim,
    arguments::Arguments,
    payload::{LAST, Reader, TIMED_RUN, WARM_UP, Writer},
    report::{self, OfRank, Timed, Torn},
    samples::Sampler,
    signal,
};

/// Runs this rank; well, if every message of every rank arrived once and whole.
pub(crate) fn run(job: &Job, arguments: &Arguments) -> Result<Verdict, Error> {
    let (me, size) = (job.rank(), job.size());
    let wrong = check(job, arguments).err().map(|error| error.to_string());
    if !say::once(job, NAME, wrong.as_deref())? {
        return Ok(Verdict::Told);
    }
    let mut ranks = Ranks::of(job, NAME);
    if let Some(nodes) = &arguments.nodes {
        ranks = ranks.on(Arc::new(nodes.clone()));
    }
    let (home, returned) = mpsc::channel();
    let mut lent = Lent { reader: Reader::new(size), home };
    let delay = Duration::from_micros(arguments.delay);
    let deliver = move |Delivery { source, kind, bytes, .. }: Delivery<'_>| {
        let Lent { reader, .. } = &mut lent;
        match (kind, bytes.first_chunk()) {
            (LAST, Some(count)) => reader.close(source, u64::from_le_bytes(*count)),
            _ => reader.take(source, kind, bytes),
        }
        if !delay.is_zero() {
            thread::sleep(delay);
        }
    };
    let shuffle = Shuffle::new(&ranks, NAME, arguments.options()?, deliver)?;
    let watch = Watch::start(job, NAME).map_err(|error| Error::Os("a thread", error))?;
    signal::answer(shuffle.dump())?;
    let mut writer = Writer::new(arguments.size, (me, size));
    let driven = drive(&shuffle, arguments, &mut writer, (me, size));
    let dump = shuffle.dump();
    // All ranks come here; after a failure, those that live.
    let ended = end(shuffle, driven);
    let reader = returned.recv().expect("deliveries are over when a shuffle is");
    match ended {
        Ok(timed) => {
            let mut own = OfRank::new(me, &timed, &reader);
            own.count_hops(&ranks.map(), &timed.sent_to);
            let gathered = report::gather(job, arguments, own, (&reader, &timed.samples));
            watch.end();
            Ok(if gathered? { Verdict::Well } else { Verdict::Wrong })
        }
        Err(Error::Shuffle(ShuffleError::Failed(failure))) => {
            let torn = Torn::new(me, &failure, dump.account(), &reader);
            torn.print(arguments.json).map_err(Error::Print)?;
            Err(Error::Shuffle(failure.into()))
        }
        Err(error) => Err(error),
    }
}

/// Whether what was asked for can work; a runner that started the ranks has seen to what is the same for all of them.
fn check(job: &Job, arguments: &Arguments) -> Result<(), Error> {
    arguments.check(job.size())?;
    // What is opened by all ranks of a machine at a time may find its port in use.
    if !Local::is_rank() && job.local_rank() == 0 {
        arguments.check_transports()?;
    }
    match &arguments.plot {
        Some(file) if job.rank() == 0 => {
            plot::check(file).map_err(|error| Error::Plot(file.clone(), error))
        }
        _ => Ok(()),
    }
}

/// Ends the shuffle. What it says of a failure then is the last word on it.
fn end(shuffle: Shuffle, driven: Result<Timed, Error>) -> Result<Timed, Error> {
    let ended = shuffle.shutdown(Shutdown::Drain);
    match driven {
        Ok(_) | Err(Error::Shuffle(ShuffleError::Failed(_))) => ended.map_err(Error::from),
        Err(_) => Ok(0),
    }?;
    driven
}

/// A reader that comes home when deliveries are over: no lock for each message.
struct Lent {
    reader: Reader,
    home: mpsc::Sender<Reader>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Nobody waits for it where the run has ended otherwise.
        let _ = self.home.send(std::mem::replace(&mut self.reader, Reader::new(0)));
    }
}

fn drive(
    shuffle: &Shuffle,
    arguments: &Arguments,
    writer: &mut Writer,
    (me, size): (u32, u32),
) -> Result<Timed, Error> {
    let mut aim = Aim::new(arguments, me, size);
    let mut sender = shuffle.sender();
    for _ in 0..arguments.warm_up() {
        let to = aim.next();
        sender.enqueue(to, WARM_UP, writer.next(to))?;
    }
    sender.flush()?;
    shuffle.flush_all()?;
    let (before, warm_up) = (shuffle.statistics(), writer.numbers().to_vec());
    // Nobody's first message is counted with the warm-up, and nobody's last one below with the rest.
    shuffle.barrier()?;
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let sampler = Sampler::start(arguments, me, shuffle.dump())?;
    let sent = send(&mut sender, arguments, (writer, &mut aim), &sampler)?;
    shuffle.flush_all()?;
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
    let statistics = shuffle.statistics().since(&before);
    shuffle.barrier()?;
    let samples = sampler.end();
    let sent_to = writer.numbers().iter().zip(&warm_up).map(|(all, warm_up)| all - warm_up);
    let (with_self, sent_to) = (arguments.has_self(), sent_to.collect());
    let timed = Timed { sent, with_self, seconds, cpu_seconds, statistics, sent_to, samples };
    for to in 0..size {
        let count = writer.numbers()[to as usize];
        sender.enqueue(to, LAST, &count.to_le_bytes())?;
    }
    sender.flush()?;
    shuffle.flush_all()?;
    Ok(timed)
}

fn send(
    sender: &mut Sender<'_>,
    arguments: &Arguments,
    (writer, aim): (&mut Writer, &mut Aim),
    sampler: &Sampler,
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
            sender.flush()?;
            return Ok(sent);
        }
        let to = aim.next();
        sender.enqueue(to, TIMED_RUN, writer.next(to))?;
        sent += 1;
        sampler.note_sent(sent);
    }
}

/// Of the shuffle, and of this program.
pub(crate) const NAME: &str = "shuffle-runner";
