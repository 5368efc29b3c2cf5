//! The threads of all processes of a job, which search together.
//!
//! The first thread of the first process leads: it has the [`Search`](crate::Search), and gives orders. All others serve: they wait for an
//! order, do what it says, and answer. A phase is an order like others; in it workers send one another messages, as threads
//! of one process do, and it ends by the same count.
//!
//! ```text
//! leader        Begin to all -> its own part of the phase -> all Parts have come -> Look, Audit, ... -> End, Leave
//! who serves    wait for an order -> its part of the phase, until Stop -> Part to the leader -> wait -> ...
//! ```
//! A message of a phase may come before the order that begins it, which another thread has heard first: it waits in the inbox.
//!
//! # When a process ends
//! Whoever notices tells all others, and ends; so does each that hears it. Every thread is connected with the leader from the start, and with
//! each to which it has sent a rollout: so somebody notices, and nobody waits for ever. All say the name of the process that was the first.
//!
//! One that stands still has no end that could be noticed. So whoever has waited for long in a phase calls what costs nothing: the leader calls
//! all others, and they the leader. Who does not run that call in time counts as gone ([`Settings::patience`]). Between phases only
//! the leader's orders are waited for, and a leader may think as long as it likes.

mod leader;
mod member;
mod post;
#[cfg(test)]
mod tests;

use std::{
    io,
    panic::resume_unwind,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use hg_invoke::{Fabric, Group, Limits};

use self::{
    leader::{Away, Leader},
    member::Member,
    post::Post,
};
use crate::{
    Gone, Portable, Settings,
    crew::{self, Crew},
};

/// Why a team was not opened, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// The transport's reasons, or the job's.
    #[error("{0}")]
    Setup(#[from] hg_invoke::Error),
    /// A process has ended, or has sent what makes no sense.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// More threads than can be numbered.
    #[error("{0} threads in all processes, and there may be 65535")]
    TooMany(u64),
    /// The system has none.
    #[error("cannot start a thread ({0}): search with fewer, or raise the limit")]
    Thread(io::Error),
}

/// The threads of all processes of a job: [`Search::by`](crate::Search::by) searches with them.
///
/// Dropping it lets the other processes go.
#[derive(Debug)]
pub struct Team<G> {
    leader: Arc<Leader<G>>,
    /// The other threads of this process.
    serving: Vec<JoinHandle<Result<(), Gone>>>,
    threads: u16,
}

impl<G: Portable> Team<G> {
    /// Collective: each process of the job calls it with the same number of threads. The first one gets the team. In all others it returns
    /// when that one has dropped the team, with nothing.
    ///
    /// `url` is the transport: `sm://` between processes of one node, `tcp://host` between nodes, or libfabric's `ofi+...`.
    ///
    /// # Errors
    /// The transport's reasons; or a process has ended.
    ///
    /// # Panics
    /// A game does, on a thread of this process.
    pub fn open(group: &impl Group, threads: u8, url: &str) -> Result<Option<Self>, TeamError> {
        let threads = threads.max(1);
        let all = u64::from(group.size()) * u64::from(threads);
        if all > u64::from(u16::MAX) {
            return Err(TeamError::TooMany(all));
        }
        let leads = group.rank() == 0;
        // Before anybody waits for this process.
        let started = (u8::from(leads)..threads).map(|_| Serving::start());
        let serving = started.collect::<Result<Vec<_>, _>>().map_err(TeamError::Thread)?;
        // Who is connected hears of the other's end: these connections are kept however long nothing is searched.
        let fabric = Fabric::new().threads(threads).limits(Limits::default().idle(KEPT));
        let fabric = fabric.queue_max(post::WAITING_MAX).queue_total(u64::MAX);
        let here = fabric.register(post::deliver)?.register(post::hear)?.open(group, url)?;
        let mut members: Vec<Member<G>> =
            here.into_iter().map(|it| Member::new(Post::new(it, threads.into()))).collect();
        let leader = leads.then(|| members.remove(0));
        let serving: Vec<_> =
            serving.into_iter().zip(members).map(|(thread, it)| thread.serve(it)).collect();
        if let Some(member) = leader {
            let leader = Arc::new(Leader::new(member));
            return Ok(Some(Self { leader, serving, threads: threads.into() }));
        }
        let ended: Vec<_> = serving.into_iter().map(joined).collect();
        ended.into_iter().collect::<Result<(), Gone>>()?;
        Ok(None)
    }

    /// Of each process.
    #[must_use]
    pub fn threads(&self) -> u16 {
        self.threads
    }

    /// Of all processes together.
    pub(crate) fn workers(&self) -> u16 {
        self.leader.all()
    }

    /// The workers of another search.
    pub(crate) fn crew(&self, settings: &Settings) -> Box<dyn Crew<G>> {
        Box::new(Away::new(&self.leader, settings.clone()))
    }
}

impl<G> Drop for Team<G> {
    fn drop(&mut self) {
        // In a phase of this thread they end when that is over.
        if !self.leader.let_go() {
            return;
        }
        for thread in self.serving.drain(..) {
            // Its panic was told to all; its error is the leader's, too.
            let _ = thread.join();
        }
    }
}

/// A thread that waits for its part in a team, or for the end of whoever started it.
struct Serving<G> {
    thread: JoinHandle<Result<(), Gone>>,
    member: mpsc::Sender<Member<G>>,
}

impl<G: Portable> Serving<G> {
    fn start() -> io::Result<Self> {
        let (member, given) = mpsc::channel();
        let run = move || given.recv().map_or(Ok(()), Member::serve);
        let thread = crew::may_start().and_then(|()| thread::Builder::new().spawn(run))?;
        Ok(Self { thread, member })
    }

    fn serve(self, member: Member<G>) -> JoinHandle<Result<(), Gone>> {
        self.member.send(member).expect("it waits for it");
        self.thread
    }
}

/// For as good as ever.
const KEPT: Duration = Duration::from_secs(365 * 24 * 3600);

fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
