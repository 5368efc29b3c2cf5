//! libpmix behind a thread of its own, so that a call that never returns costs a bound and not the process.
//!
//! Rank 0 shows its address and goes on; the others ask for exactly that. No fence: nobody waits for a rank
//! but rank 0, and the hub knows who is missing.

use std::{
    ffi::CString,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel},
    time::{Duration, Instant},
};

use crate::{Error, detect::Place, foreign::Pmix, settings::Variables};

/// What is loaded, unless `HG_JOB_LIBPMIX` names another file.
const LIBRARY: &str = "libpmix.so.2";
/// What rank 0's address is shown under.
const KEY: &str = "hg-job-hub";
/// How long the server may take to hear an abort or a goodbye.
const PARTING: Duration = Duration::from_secs(5);

/// Between two questions to a server that does not know rank 0 yet.
const PAUSE: Duration = Duration::from_millis(10);

type Work = Box<dyn FnOnce(&Pmix) + Send>;

/// A process of a PMIx job.
#[derive(Debug)]
pub(crate) struct Client {
    work: Sender<Work>,
    place: Place,
    deadline: Instant,
    within: Duration,
}

impl Client {
    pub(crate) fn connect(
        rank: u32,
        deadline: Instant,
        within: Duration,
        variables: Variables<'_>,
    ) -> Result<Self, Error> {
        let name = variables("HG_JOB_LIBPMIX").unwrap_or_else(|| LIBRARY.into());
        let (work, works) = channel::<Work>();
        let (ready, readied) = sync_channel(1);
        let thread = std::thread::Builder::new().name("hg-job-pmix".into());
        let spawned = thread.spawn(move || match start(&name) {
            Ok((pmix, place)) => {
                let _ = ready.send(Ok(place));
                for work in works {
                    work(&pmix);
                }
            }
            Err(why) => {
                let _ = ready.send(Err(why));
            }
        });
        spawned.map_err(Error::os("a thread"))?;
        let place = wait(&readied, deadline, within, "PMIx_Init")?;
        if place.rank != rank || rank >= place.size {
            let Place { rank: told, size } = place;
            return Err(error(format!(
                "PMIX_RANK is {rank}, but the server says rank {told} of {size}"
            )));
        }
        Ok(Self { work, place, deadline, within })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Shows an address, if there is one, and learns that of another rank, if one is wanted.
    pub(crate) fn meet(
        &self,
        address: Option<&str>,
        from: Option<u32>,
    ) -> Result<Option<String>, Error> {
        let key = CString::new(KEY).expect("a constant without a zero");
        if let Some(address) = address {
            let (key, shown) =
                (key.clone(), CString::new(address).expect("addresses have no zero"));
            self.ask("PMIx_Put", self.deadline, self.within, move |pmix| pmix.show(&key, &shown))?;
        }
        let Some(from) = from else { return Ok(None) };
        // The server's own bound, in whole seconds, is a second longer than this process's.
        let left = self.deadline.saturating_duration_since(Instant::now()).as_secs();
        let seconds = i32::try_from(left + 1).unwrap_or(i32::MAX);
        let deadline = self.deadline;
        let look = move |pmix: &Pmix| loop {
            match pmix.look(from, &key, seconds)? {
                Some(text) => return Ok(Some(text)),
                None if deadline <= Instant::now() => {
                    return Err(format!("rank {from} is unknown to the server"));
                }
                None => std::thread::sleep(PAUSE),
            }
        };
        self.ask("PMIx_Get", self.deadline, self.within, look).map_err(|error| match error {
            Error::Launcher { launcher, why } if deadline <= Instant::now() => Error::Launcher {
                launcher,
                why: format!("rank {from} did not join within {:?} ({why})", self.within),
            },
            other => other,
        })
    }

    pub(crate) fn abort(&self, code: u8, why: &str) {
        let why = why.to_owned();
        // Whether or not the server answers, this process ends.
        let _ = self.ask("PMIx_Abort", Instant::now() + PARTING, PARTING, move |pmix| {
            pmix.abort(code, &why);
            Ok(())
        });
    }

    pub(crate) fn finalize(&self) -> Result<(), Error> {
        self.ask("PMIx_Finalize", Instant::now() + PARTING, PARTING, Pmix::finalize)
    }

    fn ask<T: Send + 'static>(
        &self,
        call: &str,
        deadline: Instant,
        within: Duration,
        work: impl FnOnce(&Pmix) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let work = move |pmix: &Pmix| {
            // Nobody waits any more: the bound has passed.
            let _ = answer.send(work(pmix));
        };
        self.work.send(Box::new(work)).map_err(|_| error("its thread has ended".into()))?;
        wait(&answered, deadline, within, call)
    }
}

fn start(name: &str) -> Result<(Pmix, Place), String> {
    let pmix = Pmix::load(name)?;
    let place = Place { rank: pmix.rank(), size: pmix.size()? };
    Ok((pmix, place))
}

fn wait<T>(
    answered: &Receiver<Result<T, String>>,
    deadline: Instant,
    within: Duration,
    call: &str,
) -> Result<T, Error> {
    match answered.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(answer) => answer.map_err(error),
        Err(RecvTimeoutError::Timeout) => {
            Err(error(format!("no answer to {call} within {within:?}")))
        }
        Err(RecvTimeoutError::Disconnected) => Err(error("its thread has ended".into())),
    }
}

fn error(why: String) -> Error {
    Error::Launcher { launcher: "PMIx", why }
}
