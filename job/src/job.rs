//! A process as one rank among others.

use std::{
    collections::BTreeMap,
    process,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    Error, NodeMap, Ranks, Via, foreign,
    frame::{CHANNEL_MAX, VALUE_MAX, WHY_MAX, What},
    hub,
    launcher::Launcher,
    link::{Link, say_last},
};

/// One rank of a job. Clones are the same rank.
///
/// ```
/// let job = hg_job::Job::connect()?; // alone here; under mpirun, one of many
/// let names = job.all_gather(format!("rank {}", job.rank()).as_bytes())?;
/// assert_eq!(names.len(), job.size() as usize);
/// assert_eq!(names[job.rank() as usize], format!("rank {}", job.rank()).as_bytes());
/// job.barrier()?;
/// job.leave()?;
/// # Ok::<(), hg_job::Error>(())
/// ```
///
/// # Ending
/// [`leave`](Self::leave) is the good end. A rank whose last clone is dropped without it, or whose process
/// ends, is lost: the others' calls fail with its number.
#[derive(Debug, Clone)]
pub struct Job {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    via: Via,
    rank: u32,
    nodes: NodeMap,
    wait: Duration,
    // Dropped in this order: the link first, so that this process's own hub sees it go.
    link: Option<Link>,
    ending: Mutex<Ending>,
}

/// What is needed at the end only.
#[derive(Debug)]
struct Ending {
    hub: Option<hub::Running>,
    launcher: Option<Launcher>,
}

/// What a job is made of.
pub(crate) struct Parts {
    pub via: Via,
    pub rank: u32,
    pub nodes: NodeMap,
    pub wait: Duration,
    pub link: Option<Link>,
    pub hub: Option<hub::Running>,
    pub launcher: Option<Launcher>,
}

impl Job {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { via, rank, nodes, wait, link, hub, launcher } = parts;
        let ending = Mutex::new(Ending { hub, launcher });
        Self { inner: Arc::new(Inner { via, rank, nodes, wait, link, ending }) }
    }

    /// How the ranks found one another.
    #[must_use]
    pub fn via(&self) -> Via {
        self.inner.via
    }

    /// Which one this is, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.nodes.size()
    }

    /// The node of this rank, from 0.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.inner.nodes.node_of(self.rank())
    }

    /// The index of this rank among those of its node.
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        self.inner.nodes.local_rank(self.rank())
    }

    /// How many ranks this node has.
    #[must_use]
    pub fn local_size(&self) -> u32 {
        self.inner.nodes.local_size(self.rank())
    }

    /// Which rank is on which node.
    #[must_use]
    pub fn node_map(&self) -> &NodeMap {
        &self.inner.nodes
    }

    /// Every rank gives a value of at most [`VALUE_MAX`] bytes, and gets those of all, in the order of ranks.
    ///
    /// All ranks have to call the same collectives of a channel in the same order.
    ///
    /// # Errors
    /// A rank is lost, has left, has aborted, calls something else, or does not come within
    /// [`Settings::wait`](crate::Settings::wait).
    pub fn all_gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.channel("").all_gather(value)
    }

    /// Waits until every rank has called this.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather).
    pub fn barrier(&self) -> Result<(), Error> {
        self.channel("").barrier()
    }

    /// Collective calls with an order of their own, so that independent parts of a program do not have to
    /// agree on one. The same name is the same channel.
    ///
    /// # Panics
    /// The name is longer than [`CHANNEL_MAX`] bytes.
    #[must_use]
    pub fn channel(&self, name: &str) -> Channel {
        assert!(name.len() <= CHANNEL_MAX, "the name of a channel has at most {CHANNEL_MAX} bytes");
        Channel { job: self.clone(), name: name.to_owned(), wait: self.inner.wait }
    }

    /// Can the ranks still work together? Does not wait, and asks nobody.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.link.as_ref().map_or(Ok(()), Link::check)
    }

    /// Ends this process and, by telling the others and the launcher, all of them. Status 0 becomes 1.
    pub fn abort(&self, code: u8, why: &str) -> ! {
        let code = code.max(1);
        let end =
            (0..=why.len().min(WHY_MAX)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        let why = &why[..end];
        // Before anybody is told who may kill this process.
        say_last(&format!("rank {} aborts the job: {why}", self.rank()));
        if let Some(link) = &self.inner.link {
            link.abort(code, why);
        }
        match &mut self.ending().launcher {
            Some(Launcher::Pmi(client)) => client.abort(code, why),
            Some(Launcher::Pmix(client)) => client.abort(code, why),
            None => {}
        }
        process::exit(i32::from(code))
    }

    /// Leaves in good order: this rank takes part in nothing any more. Collective: a rank waits for those
    /// that are connected through it, rank 0 for all, at most for [`Settings::wait`](crate::Settings::wait); others do not wait.
    ///
    /// # Errors
    /// The job is broken already, or the launcher refuses the goodbye.
    pub fn leave(self) -> Result<(), Error> {
        let Some(link) = &self.inner.link else { return Ok(()) };
        link.leave()?;
        // Not under the lock: another thread may abort meanwhile.
        let hub = self.ending().hub.take();
        if hub.is_some_and(|hub| !hub.wait(self.inner.wait)) {
            return Err(Error::StillHere { within: self.inner.wait });
        }
        // MPI says goodbye itself, and may still have something to say before.
        match &mut self.ending().launcher {
            Some(Launcher::Pmi(client)) if !foreign::uses_mpi() => client.finalize(),
            Some(Launcher::Pmix(client)) => client.finalize(),
            Some(Launcher::Pmi(_)) | None => Ok(()),
        }
    }

    fn ending(&self) -> std::sync::MutexGuard<'_, Ending> {
        // Every change under this lock is complete when it can panic.
        self.inner.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collective calls with an order of their own: [`Job::channel`].
#[derive(Debug, Clone)]
pub struct Channel {
    job: Job,
    name: String,
    wait: Duration,
}

impl Channel {
    /// With another bound than [`Settings::wait`](crate::Settings::wait). A call that it ends was made and counts in the order of
    /// calls, but for [`Error::NotMade`].
    #[must_use]
    pub fn within(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// See [`Job::all_gather`].
    ///
    /// # Errors
    /// As there.
    pub fn all_gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        check_length(value)?;
        match &self.job.inner.link {
            Some(link) => link.collect(&self.name, What::Gather, Some(value), self.wait),
            None => Ok(vec![value.to_vec()]),
        }
    }

    /// The same without a bound, for whoever wants to know who is late: calls `late` whenever `patience` has passed
    /// since this call or since it was last asked, with the ranks that have not made the call; with `None` where the
    /// process that holds the job together does not answer. `late` may itself make calls of other channels.
    ///
    /// # Errors
    /// As there, but for the bound.
    pub fn all_gather_watched(
        &self,
        value: &[u8],
        patience: Duration,
        late: impl FnMut(Option<&Ranks>),
    ) -> Result<Vec<Vec<u8>>, Error> {
        check_length(value)?;
        match &self.job.inner.link {
            Some(link) => link.gather_watched(&self.name, value, patience, late),
            None => Ok(vec![value.to_vec()]),
        }
    }

    /// See [`Job::barrier`].
    ///
    /// # Errors
    /// As for [`Job::all_gather`].
    pub fn barrier(&self) -> Result<(), Error> {
        let Some(link) = &self.job.inner.link else { return Ok(()) };
        link.collect(&self.name, What::Barrier, None, self.wait).map(drop)
    }

    /// Rank 0 gives a value of at most [`VALUE_MAX`] bytes, and all get it; what others give is not looked at. Of any number
    /// of ranks, no process holds more than this one value.
    ///
    /// # Errors
    /// As for [`Job::all_gather`].
    pub fn share(&self, value: &[u8]) -> Result<Vec<u8>, Error> {
        check_length(value)?;
        let Some(link) = &self.job.inner.link else { return Ok(value.to_vec()) };
        let value = (self.job.rank() == 0).then_some(value);
        let mut values = link.collect(&self.name, What::Share, value, self.wait)?;
        values.pop().ok_or_else(|| Error::Disagree("rank 0 has shared nothing".into()))
    }

    /// Gives a value of at most [`VALUE_MAX`] bytes to some other ranks, and gets theirs, by rank: whoever a rank names has to
    /// name it, too. Ends when theirs have come, whatever other ranks do. Of any number of ranks, no process holds more than the
    /// values that it gets, and a bounded number that it passes on.
    ///
    /// # Errors
    /// As for [`Job::all_gather`]; what is late is named by this rank itself.
    ///
    /// # Panics
    /// `peers` are not ascending, or there are no such ranks.
    pub fn exchange(&self, peers: &[u32], value: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, Error> {
        let (rank, size) = (self.job.rank(), self.job.size());
        let is_well = peers.is_sorted_by(|one, next| one < next) && !peers.contains(&rank);
        assert!(is_well && peers.iter().all(|peer| *peer < size), "other ranks, in their order");
        check_length(value)?;
        match &self.job.inner.link {
            Some(link) => link.exchange(&self.name, peers, value, self.wait),
            None => Ok(BTreeMap::new()),
        }
    }
}

fn check_length(value: &[u8]) -> Result<(), Error> {
    let (len, max) = (value.len(), VALUE_MAX);
    if len > max { Err(Error::TooLong { len, max }) } else { Ok(()) }
}
