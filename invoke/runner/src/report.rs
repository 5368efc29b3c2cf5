//! What is printed at the end: a line for each thread, and one for all of them.

use std::{fs, io};

use hg_job::Job;
use hg_job_runner::{
    Error as RunnerError,
    process::{cpu_seconds, peak_rss_kib},
    program::Verdict,
    say::{self, unless_closed},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    arguments::Arguments,
    payload::Wrong,
    samples::{self, Sample},
    work::Ended,
};

/// What one thread has seen in the timed run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OfThread {
    rank: Option<u32>,
    thread: Option<u32>,
    threads: u32,
    /// Calls.
    made: u64,
    run: u64,
    seconds: f64,
    calls_per_s: f64,
    mb_per_s: f64,
    /// Of the whole run, its warm-up included: calls that came back.
    came_back: u64,
    /// Blocks that left by the transport, and those that were handed over to threads of the same process.
    blocks: u64,
    handed_over: u64,
    channels: u64,
    /// Windows that were doubled.
    widened: u64,
    /// Processor time of the whole process and run.
    cpu_seconds: f64,
    /// Most memory of the process so far.
    peak_rss_kib: u64,
    /// Descriptors that the process had open when all calls had run.
    descriptors: u64,
    #[serde(flatten)]
    wrong: Wrong,
}

impl OfThread {
    fn new(rank: u32, ended: &Ended) -> Self {
        Self {
            rank: Some(rank),
            thread: Some(ended.thread),
            threads: 1,
            made: ended.made,
            run: ended.reader.timed,
            seconds: ended.seconds,
            calls_per_s: 0.0,
            mb_per_s: 0.0,
            came_back: ended.came_back,
            blocks: ended.stats.blocks,
            handed_over: ended.stats.handed_over,
            channels: ended.stats.channels,
            widened: ended.stats.widened,
            cpu_seconds: cpu_seconds(),
            peak_rss_kib: peak_rss_kib(),
            descriptors: ended.descriptors,
            wrong: ended.reader.wrong,
        }
    }

    /// With the rates that follow from the rest.
    fn rated(self, size: usize) -> Self {
        let calls_per_s = float(self.run) / self.seconds.max(f64::MIN_POSITIVE);
        let mb_per_s = calls_per_s * float(size as u64) / 1e6;
        Self { calls_per_s, mb_per_s, ..self }
    }

    /// Both together. Processor time is of a process, and counted with its first thread.
    fn plus(self, other: &Self) -> Self {
        let is_first = other.thread == Some(0);
        Self {
            rank: None,
            thread: None,
            threads: self.threads + other.threads,
            made: self.made + other.made,
            run: self.run + other.run,
            seconds: self.seconds.max(other.seconds),
            came_back: self.came_back + other.came_back,
            blocks: self.blocks + other.blocks,
            handed_over: self.handed_over + other.handed_over,
            channels: self.channels + other.channels,
            widened: self.widened + other.widened,
            cpu_seconds: self.cpu_seconds + if is_first { other.cpu_seconds } else { 0.0 },
            peak_rss_kib: self.peak_rss_kib.max(other.peak_rss_kib),
            descriptors: self.descriptors.max(other.descriptors),
            wrong: self.wrong.plus(other.wrong),
            ..self
        }
    }

    fn row(&self) -> String {
        let name = |number: Option<u32>| number.map_or("all".to_owned(), |it| it.to_string());
        let Wrong { lost, repeated, corrupted } = self.wrong;
        format!(
            "{:>5} {:>6} {:>12.0} {:>9.1} {:>12} {:>12} {:>9} {:>9} {:>8} {:>9} {:>8} {lost:>5} {repeated:>8} {corrupted:>9}",
            name(self.rank),
            name(self.thread),
            self.calls_per_s,
            self.mb_per_s,
            self.made,
            self.run,
            self.blocks,
            self.handed_over,
            self.channels,
            self.came_back,
            self.peak_rss_kib,
        )
    }
}

/// Compares what was made with what has run, brings the reports of all threads together, and prints them by rank 0. Whether anything
/// was wrong anywhere.
pub(crate) fn gather(
    job: &Job,
    arguments: &Arguments,
    ended: Vec<Ended>,
    samples: &[Sample],
) -> Result<Verdict, Error> {
    gather_into(&mut io::stdout().lock(), job, arguments, ended, samples)
}

fn gather_into(
    out: &mut impl io::Write,
    job: &Job,
    arguments: &Arguments,
    mut ended: Vec<Ended>,
    samples: &[Sample],
) -> Result<Verdict, Error> {
    ended.sort_by_key(|it| it.thread);
    compare(job, &mut ended)?;
    let own: Vec<OfThread> =
        ended.iter().map(|it| OfThread::new(job.rank(), it).rated(arguments.size)).collect();
    let told = say::gather(job, &own)?.concat();
    let mut drawn = Ok(());
    if let Some(file) = &arguments.plot {
        let plot = samples::plot(&say::gather(job, &samples.to_vec())?);
        if job.rank() == 0 {
            let written = fs::write(file, plot.to_string());
            drawn = written.map_err(|error| RunnerError::Plot(file.clone(), error));
        }
    }
    let Some((first, rest)) = told.split_first() else { return Ok(Verdict::Well) };
    let total = rest.iter().fold(first.clone(), OfThread::plus);
    let total = OfThread { rank: None, thread: None, ..total }.rated(arguments.size);
    let is_well = total.wrong == Wrong::default() && total.made == total.run;
    if job.rank() == 0 {
        let printed = print(out, &told, &total, is_well, arguments.json);
        unless_closed(printed).map_err(RunnerError::Print)?;
    }
    // Not sooner: the figures of the run are not lost with their picture.
    drawn?;
    Ok(if is_well { Verdict::Well } else { Verdict::Wrong })
}

/// Tells all processes how many calls each thread has made to each, by the job and not by what is measured.
fn compare(job: &Job, ended: &mut [Ended]) -> Result<(), Error> {
    let threads = u32::try_from(ended.len()).unwrap_or(u32::MAX);
    let mut made = Vec::new();
    for (sender, thread) in (job.rank() * threads..).zip(&*ended) {
        for (to, number) in (0_u32..).zip(&thread.numbers) {
            if *number > 0 {
                made.extend_from_slice(&sender.to_le_bytes());
                made.extend_from_slice(&to.to_le_bytes());
                made.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    for bytes in job.all_gather(&made)? {
        for [sender, to, low, high] in bytes.as_chunks::<4>().0.as_chunks::<4>().0 {
            let [sender, to, low, high] = [sender, to, low, high].map(|it| u32::from_le_bytes(*it));
            let thread = to.checked_sub(job.rank() * threads);
            if let Some(thread) = thread.and_then(|it| ended.get_mut(it as usize)) {
                thread.reader.compare(sender, u64::from(high) << 32 | u64::from(low));
            }
        }
    }
    Ok(())
}

fn print(
    out: &mut impl io::Write,
    told: &[OfThread],
    total: &OfThread,
    is_well: bool,
    json: bool,
) -> io::Result<()> {
    let reports = told.iter().chain([total]);
    if json {
        for report in reports {
            writeln!(out, "{}", serde_json::to_string(report)?)?;
        }
        return out.flush();
    }
    writeln!(out, "{HEAD}")?;
    for report in reports {
        writeln!(out, "{}", report.row())?;
    }
    if is_well {
        let calls = total.run;
        writeln!(
            out,
            "{calls} calls verified: each ran once, in the order of its caller, and whole"
        )?;
    }
    out.flush()
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

const HEAD: &str = "\
timed run: calls that each thread made, and those that ran there; RSS: the most of its process so far
 rank thread      calls/s      MB/s         made          run    blocks    handed channels came back  RSS KiB  lost repeated corrupted";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::payload::Reader;

    /// What is said of one thread that has made one call to itself, which has run, or has not; and with what verdict.
    fn reported(found: Wrong, has_run: bool, given: &[&str]) -> (Verdict, String) {
        let job = Job::connect().expect("a job of one process");
        let arguments = [&["invoke-runner"][..], given].concat();
        let arguments = Arguments::try_parse_from(arguments).expect("arguments are right");
        let mut reader = Reader::new(1, 0, Default::default());
        if has_run {
            reader.take(1 << 63, &[]);
        }
        reader.wrong = reader.wrong.plus(found);
        let ended = Ended {
            thread: 0,
            made: 1,
            seconds: 1.0,
            came_back: 0,
            numbers: vec![1],
            stats: Default::default(),
            descriptors: 0,
            reader,
        };
        let mut out = Vec::new();
        let verdict = gather_into(&mut out, &job, &arguments, vec![ended], &[]);
        (verdict.expect("reported"), String::from_utf8(out).expect("text"))
    }

    #[test]
    fn calls_are_verified_only_if_nothing_was_wrong() {
        let nothing = Wrong::default();
        let (verdict, said) = reported(nothing, true, &[]);
        assert_eq!(verdict, Verdict::Well);
        assert!(
            said.ends_with(
                "1 calls verified: each ran once, in the order of its caller, and whole\n"
            ),
            "{said}"
        );
        let one_each = [
            Wrong { lost: 1, ..nothing },
            Wrong { repeated: 1, ..nothing },
            Wrong { corrupted: 1, ..nothing },
        ];
        for (found, has_run) in one_each.map(|it| (it, true)).into_iter().chain([(nothing, false)])
        {
            for given in [&[][..], &["--json"]] {
                let (verdict, said) = reported(found, has_run, given);
                assert_eq!(verdict, Verdict::Wrong, "{found:?} {has_run}");
                assert!(!said.contains("verified"), "{said}");
            }
            let (_, said) = reported(found, has_run, &["--json"]);
            let all = said.lines().last().expect("of all threads");
            let all: Wrong = serde_json::from_str(all).expect("JSON");
            let lost = u64::from(!has_run);
            assert_eq!(
                all,
                Wrong { lost: found.lost + lost, ..found },
                "what is not there was lost"
            );
        }
    }
}
