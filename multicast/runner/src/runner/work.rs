//! One process of the run.

use std::{sync::Arc, time::Instant};

use hg::{
    Address,
    bulk::{Buffer, Bulk, Rights, alloc},
};
use hg_job::{Job, Local};
use hg_job_runner::{program::Verdict, say, watch::Watch};
use hg_multicast::{Data, Destination, Group, Multicast, Object};

use crate::{
    Error, NAME,
    arguments::{Arguments, Pattern, Scheduled},
    bare, groups,
    pause::{Pause, Stops},
    payload, progress,
    report::{self, Row},
    steps,
};

/// Runs this process.
pub(crate) fn run(job: &Job, arguments: &Arguments) -> Result<Verdict, Error> {
    let wrong = check(job, arguments).err().map(|error| error.to_string());
    if !say::once(job, NAME, wrong.as_deref())? {
        return Ok(Verdict::Told);
    }
    let open = || Ok(Multicast::of_job(job, arguments.builder()?, arguments.url())?);
    let opened: Result<_, Error> = open();
    let wrong = opened.as_ref().err().map(ToString::to_string);
    if !say::once(job, NAME, wrong.as_deref())? {
        return Ok(Verdict::Told);
    }
    let (multicast, addresses) = opened?;
    let watch = Watch::start(job, NAME).map_err(Error::Thread)?;
    let rate = arguments.link.map(|link| bare::bytes_per_s(job, link)).transpose()?;
    let run = Run { job, arguments, multicast: &multicast, addresses: &addresses, rate };
    let is_well = match arguments.pattern {
        Pattern::One => run.one_after_the_other()?,
        Pattern::All | Pattern::Half => groups::overlapping(&run)?,
        Pattern::Trace => groups::trace(&run)?,
    };
    watch.end();
    multicast.close();
    Ok(if is_well { Verdict::Well } else { Verdict::Wrong })
}

fn check(job: &Job, arguments: &Arguments) -> Result<(), Error> {
    if Local::is_rank() {
        return Ok(());
    }
    arguments.check(job.size())?;
    if job.rank() == 0 { arguments.check_files() } else { Ok(()) }
}

/// What all patterns need.
pub(crate) struct Run<'a> {
    pub(crate) job: &'a Job,
    pub(crate) arguments: &'a Arguments,
    pub(crate) multicast: &'a Multicast,
    pub(crate) addresses: &'a [Address],
    /// Of the bare link, in bytes a second, where it is emulated.
    pub(crate) rate: Option<f64>,
}

/// Where this rank has its objects, one after the other.
struct Place {
    buffer: Arc<Bulk>,
    /// Where this member is the one that stops now and then.
    stops: Option<Stops>,
}

impl Run<'_> {
    /// Each combination of size, block and schedule, each object when the one before has come and was checked.
    fn one_after_the_other(&self) -> Result<bool, Error> {
        let (mut rows, mut is_well) = (report::beside()?, true);
        for size in &self.arguments.size {
            for block in self.arguments.blocks() {
                for scheduled in &self.arguments.schedule {
                    let (measured, is_right) = self.combination(*scheduled, size.0, block)?;
                    is_well &= is_right;
                    rows.extend(measured);
                }
            }
        }
        report::compare(&mut rows);
        if self.job.rank() == 0 {
            report::print(self.arguments, self.rate, &rows, is_well)?;
        }
        Ok(is_well)
    }

    fn combination(
        &self,
        scheduled: Scheduled,
        size: u64,
        block: Option<u64>,
    ) -> Result<(Vec<Row>, bool), Error> {
        let (members, stall) = (self.job.size(), self.arguments.stall);
        let buffer = Arc::new(self.multicast.engine().expose(shared(size)?, Rights::READ)?);
        let place = Place { buffer, stops: Stops::of(stall, self.job.rank()) };
        let group = self.group(scheduled, block, &place)?;
        let block = group.block_size(size);
        self.tell(&format!("{}, {size} bytes in blocks of {block}", scheduled.name()));
        let [warm_up, count] = [self.arguments.warm_up, self.arguments.count].map(u64::from);
        let each = if stall.is_some() { 2 } else { 1 };
        let (begin, end) = (each * warm_up, each * (warm_up + count));
        let group = Arc::new(group);
        let shown = progress::of_group(self.job, end, &group)?;
        let (mut seconds, mut stalled, mut wrong) = (Vec::new(), Vec::new(), 0_u64);
        for number in 0..end {
            if number + 1 == end {
                // Only the last one is drawn.
                drop(group.take_trace());
            }
            let (took, is_right) = self.object(&group, &place, number)?;
            wrong += u64::from(!is_right);
            if number >= begin {
                let is_stalled = stall.is_some() && Pause::is_at(number);
                if is_stalled { &mut stalled } else { &mut seconds }.push(took);
            }
        }
        let is_zero = |bytes: &Vec<u8>| bytes.iter().all(|byte| *byte == 0);
        let mut is_right = self.job.all_gather(&wrong.to_le_bytes())?.iter().all(is_zero);
        if self.arguments.is_traced() {
            steps::write(self.job, &group, self.arguments)?;
        }
        drop(shown);
        let group = Arc::into_inner(group).expect("nobody looks any more");
        group.close().wait()?;
        let row = |seconds| Row::new(scheduled, members, (size, block), seconds, self.rate);
        let mut rows = vec![row(seconds)];
        if let Some(stall) = stall {
            let own = place.stops.as_ref().map_or(0, Stops::count);
            if self.job.all_gather(&own.to_le_bytes())?.iter().all(is_zero) {
                self.complain(&format!("--stall: {stall}: it sends that to nobody"));
                is_right = false;
            }
            rows.push(row(stalled).stalled());
        }
        Ok((rows, is_right))
    }

    fn group(
        &self,
        scheduled: Scheduled,
        block: Option<u64>,
        place: &Place,
    ) -> Result<Group, Error> {
        let id = Multicast::ids_of_job(self.job, 1)?[0];
        let options = self.arguments.options(scheduled, block);
        let (destination, stops) = (Arc::clone(&place.buffer), place.stops.clone());
        let is_mapped = self.arguments.mapped;
        let incoming = move |coming: hg_multicast::Incoming<'_>| {
            if let Some(stops) = &stops {
                let blocks = stops.blocks(&destination, coming.block_size, coming.number);
                return Ok(Destination::Blocks(blocks));
            }
            let copied = Destination::Registered(Arc::clone(&destination));
            Ok(if is_mapped { Destination::Mapped } else { copied })
        };
        let group = self.multicast.group(id, self.addresses, self.job.rank(), options, incoming)?;
        group.joined().wait()?;
        Ok(group)
    }

    /// One object; the time until all have it, at the root, and whether it is right, at receivers.
    fn object(&self, group: &Group, place: &Place, number: u64) -> Result<(f64, bool), Error> {
        let buffer = &place.buffer;
        if self.job.rank() == 0 {
            let mut object = self.filled(buffer, number)?;
            if let Some(stops) = &place.stops {
                let size = buffer.len();
                let from = stops.blocks(buffer, group.block_size(size), number);
                object = Object::Blocks { from, size };
            }
            self.job.barrier()?;
            let start = Instant::now();
            group.send(object, &[])?.wait()?;
            let took = start.elapsed().as_secs_f64();
            self.job.barrier()?;
            return Ok((took, true));
        }
        self.job.barrier()?;
        let start = Instant::now();
        let received = group.receive().wait()?;
        let took = start.elapsed().as_secs_f64();
        // Nobody looks at it while others wait for it.
        self.job.barrier()?;
        let Some(received) = received else { return Ok((took, false)) };
        let is_whole = received.number == number && received.size == buffer.len();
        let wrong = match &received.data {
            Data::Registered(memory) => wrong(memory, 0, number)?,
            Data::Memory(memory) => wrong(memory, 0, number)?,
            Data::Frozen(bytes) => payload::wrong(bytes, 0, 0, number),
            Data::Bytes(bytes) => payload::wrong(bytes, 0, 0, number),
            Data::Blocks(_) if place.stops.is_some() => wrong(buffer, 0, number)?,
            Data::Blocks(_) => Some(0),
        };
        if let Some(at) = wrong {
            say::say(&format!(
                "{NAME}: rank {}: byte {at} of object {number} is wrong",
                self.job.rank()
            ));
        }
        Ok((took, is_whole && wrong.is_none()))
    }

    /// The next object, in the memory that is used again and again, or in such as nobody can change.
    fn filled(&self, buffer: &Arc<Bulk>, number: u64) -> Result<Object, Error> {
        let mut bytes = shared(buffer.len())?;
        payload::fill(&mut bytes, 0, number);
        if self.arguments.mapped {
            return Ok(bytes.freeze()?.into());
        }
        buffer.write(0, &bytes)?;
        Ok(Arc::clone(buffer).into())
    }

    /// Says, once, what was wrong.
    fn complain(&self, words: &str) {
        if self.job.rank() == 0 {
            say::say(&format!("{NAME}: {words}"));
        }
    }

    /// Says how far it is, where that is asked for.
    pub(crate) fn tell(&self, words: &str) {
        if self.arguments.verbose && self.job.rank() == 0 {
            say::say(&format!("{NAME}: {words}"));
        }
    }
}

/// The same that other processes of the node can map.
fn shared(size: u64) -> Result<Buffer, Error> {
    let mut bytes = alloc(usize::try_from(size).unwrap_or(usize::MAX))?;
    bytes.fill(1);
    Ok(bytes)
}

/// Memory that is there, and not only promised.
pub(crate) fn touched(size: u64) -> Vec<u8> {
    vec![1; usize::try_from(size).expect("a size that was allocated elsewhere fits here")]
}

/// Where a byte is wrong.
pub(crate) fn wrong(memory: &Bulk, root: u32, number: u64) -> Result<Option<u64>, Error> {
    let mut bytes = vec![0; CHUNK];
    let mut from = 0;
    while from < memory.len() {
        let len =
            usize::try_from((memory.len() - from).min(CHUNK as u64)).expect("at most a chunk");
        memory.read(from, &mut bytes[..len])?;
        if let Some(at) = payload::wrong(&bytes[..len], from, root, number) {
            return Ok(Some(at));
        }
        from += len as u64;
    }
    Ok(None)
}

/// Bytes that are checked at a time.
const CHUNK: usize = 1 << 18;
