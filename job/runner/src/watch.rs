//! Whether every rank answers: they meet every second beside their work, and who does not come is named.
//!
//! A rank that was stopped, that has no processor, or whose machine is cut off keeps all others waiting without a
//! word: it is not gone. The lowest rank that answers says on standard error who does not, once, and when it does
//! again.

use std::{
    fs, io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hg_job::{Channel, Job, Ranks, Via};

use crate::say::say;

/// A thread that meets those of the other ranks.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl Watch {
    /// `program` begins each line that is said.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(job: &Job, program: &'static str) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        // Rank 0 holds the job together, unless a runner does.
        let hub = if job.via() == Via::Local { None } else { Some(0) };
        let (channel, me, size) = (job.channel(NAME), job.rank(), job.size());
        let meeting = Arc::clone(&shared);
        let run = move || meeting.run(&channel, Silence::new(program, me, hub), size);
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Collective, in good order: nobody meets anybody any more.
    pub fn end(mut self) {
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Until all are over, or the job is.
    fn run(&self, channel: &Channel, mut silence: Silence, size: u32) {
        let late = |_: Option<&Ranks>| {};
        let Ok(names) = channel.all_gather_watched(own_name().as_bytes(), PATIENCE, late) else {
            return;
        };
        silence.names = names.iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect();
        // What they tell each other grows with the square of their number.
        let interval = INTERVAL * size.div_ceil(RANKS_A_SECOND);
        loop {
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.ended.wait_timeout_while(is_over, interval, |over| !*over);
            let is_over = *waited.unwrap_or_else(PoisonError::into_inner).0;
            let late = |missing: Option<&Ranks>| {
                silence.note(missing, Instant::now()).iter().for_each(|line| say(line));
            };
            let met = channel.all_gather_watched(&[is_over.into()], PATIENCE, late);
            let Ok(met) = met else { return };
            silence.end(Instant::now()).iter().for_each(|line| say(line));
            if met.iter().all(|said| said == &[1]) {
                return;
            }
        }
    }
}

/// Who is silent, as far as this rank has said it.
#[derive(Debug)]
struct Silence {
    program: &'static str,
    me: u32,
    /// The rank without which nobody hears anything of the others.
    hub: Option<u32>,
    names: Vec<String>,
    /// Since when, about.
    said: Vec<(u32, Instant)>,
}

impl Silence {
    fn new(program: &'static str, me: u32, hub: Option<u32>) -> Self {
        Self { program, me, hub, names: Vec::new(), said: Vec::new() }
    }

    /// These have not come in time; `None`: whoever would know does not answer. What is to be said of it.
    fn note(&mut self, missing: Option<&Ranks>, now: Instant) -> Vec<String> {
        let hub: Vec<u32> = self.hub.into_iter().collect();
        let missing = missing.map_or(&hub, |missing| &missing.0);
        let speaker = (0..).find(|rank| !missing.contains(rank));
        if speaker != Some(self.me) {
            return Vec::new();
        }
        let since = now.checked_sub(PATIENCE).unwrap_or(now);
        let is_new = |rank: &&u32| !self.said.iter().any(|(said, _)| said == *rank);
        let new: Vec<u32> = missing.iter().filter(is_new).copied().collect();
        self.said.extend(new.iter().map(|rank| (*rank, since)));
        let mut lines = self.named(&new, |who, verb| {
            let patience = PATIENCE.as_secs();
            format!("{who} {verb} not answered for {patience} s: stopped, overloaded or cut off")
        });
        // Some may be back while others are not.
        let back: Vec<_> = self.said.extract_if(.., |(rank, _)| !missing.contains(rank)).collect();
        lines.extend(self.returned(&back, now));
        lines
    }

    /// All have come.
    fn end(&mut self, now: Instant) -> Vec<String> {
        let back = std::mem::take(&mut self.said);
        self.returned(&back, now)
    }

    fn returned(&self, back: &[(u32, Instant)], now: Instant) -> Vec<String> {
        let Some(since) = back.iter().map(|(_, since)| *since).min() else { return Vec::new() };
        let seconds = now.saturating_duration_since(since).as_secs();
        let ranks: Vec<u32> = back.iter().map(|(rank, _)| *rank).collect();
        self.named(&ranks, |who, verb| {
            let verb = if verb == "has" { "answers" } else { "answer" };
            format!("{who} {verb} again, after {seconds} s")
        })
    }

    /// A line about each of these, or one about all of many.
    fn named(&self, ranks: &[u32], line: impl Fn(&str, &str) -> String) -> Vec<String> {
        if ranks.len() > NAMED_MAX {
            return vec![line(&format!("{}: {}", self.program, Ranks(ranks.to_vec())), "have")];
        }
        let name = |rank: &u32| {
            let name = self.names.get(*rank as usize).map(|name| format!(" ({name})"));
            line(&format!("{}: rank {rank}{}", self.program, name.unwrap_or_default()), "has")
        };
        ranks.iter().map(name).collect()
    }
}

fn own_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("host {}, process {}", host.trim(), std::process::id())
}

/// Of the channel.
const NAME: &str = "shuffle-runner.watch";
/// Between two meetings, for each so many ranks.
const INTERVAL: Duration = Duration::from_secs(1);
const RANKS_A_SECOND: u32 = 256;
/// A rank that is late for so long is named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Ranks that are named one by one.
const NAMED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(me: u32, hub: Option<u32>) -> Silence {
        let names = (0..8).map(|rank| format!("host h, process {rank}")).collect();
        Silence { names, ..Silence::new("shuffle-runner", me, hub) }
    }

    #[test]
    fn who_is_silent_is_said_once_by_the_lowest_rank_that_is_not_and_so_is_its_return() {
        let now = Instant::now() + Duration::from_secs(100);
        let ranks = |list: &[u32]| Ranks(list.to_vec());
        let mut first = silence(1, None);
        let said = first.note(Some(&ranks(&[0, 3])), now);
        let long = "has not answered for 5 s: stopped, overloaded or cut off";
        let expected = [0, 3]
            .map(|rank| format!("shuffle-runner: rank {rank} (host h, process {rank}) {long}"));
        assert_eq!(said, expected);
        assert!(first.note(Some(&ranks(&[0, 3])), now).is_empty(), "once");
        let later = now + Duration::from_secs(7);
        let said = first.note(Some(&ranks(&[0])), later);
        assert_eq!(said, ["shuffle-runner: rank 3 (host h, process 3) answers again, after 12 s"]);
        assert_eq!(first.end(later).len(), 1);
        assert!(first.end(later).is_empty(), "once");
        assert!(silence(2, None).note(Some(&ranks(&[0, 3])), now).is_empty(), "1 says it");
        let said = silence(0, None).note(Some(&ranks(&[1, 2, 3, 4, 6])), now);
        assert_eq!(
            said,
            [format!("shuffle-runner: ranks 1-4 and 6 {}", long.replace("has", "have"))]
        );
    }

    #[test]
    fn when_rank_0_holds_the_job_together_and_is_silent_rank_1_says_so() {
        let now = Instant::now() + Duration::from_secs(100);
        let said = silence(1, Some(0)).note(None, now);
        assert!(
            said.len() == 1 && said[0].contains("rank 0 (host h, process 0) has not"),
            "{said:?}"
        );
        assert!(silence(2, Some(0)).note(None, now).is_empty());
        assert!(
            silence(0, None).note(None, now).is_empty(),
            "a runner that is stopped harms nobody"
        );
    }
}
