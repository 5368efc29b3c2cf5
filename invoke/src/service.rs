//! Service threads: the library's own, which run what others call. How one serves: [`Worker::serve`](crate::Worker).

use std::{
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
    time::Instant,
};

use hg_channel::Near;

use crate::Error;

/// The service threads of a process. They end with the last worker, which has this.
#[derive(Debug)]
pub(crate) struct Services {
    stage: Arc<Stage>,
    near: Arc<Near>,
    /// Each says at its end whether all that was called there has left.
    threads: Vec<(u32, JoinHandle<bool>)>,
}

/// How far the workers of the process are: one of them is there, at least, until this says how the last one has ended.
#[derive(Debug, Default)]
pub(crate) struct Stage(OnceLock<End>);

#[derive(Debug)]
enum End {
    /// What service threads have called leaves before they end, or until then.
    Finished(Option<Instant>),
    /// It does not: a drop waits for nobody.
    Dropped,
}

impl Stage {
    pub(crate) fn is_working(&self) -> bool {
        self.0.get().is_none()
    }

    /// What has not left by now is dropped.
    pub(crate) fn is_over(&self) -> bool {
        match self.0.get() {
            None | Some(End::Finished(None)) => false,
            Some(End::Finished(Some(end))) => *end <= Instant::now(),
            Some(End::Dropped) => true,
        }
    }
}

impl Services {
    pub(crate) fn new(near: &Arc<Near>) -> Self {
        Self { stage: Arc::default(), near: Arc::clone(near), threads: Vec::new() }
    }

    /// Starts one, which has this number.
    pub(crate) fn start(
        &mut self,
        end: u32,
        serve: impl FnOnce(&Stage) -> bool + Send + 'static,
    ) -> Result<(), Error> {
        let stage = Arc::clone(&self.stage);
        let thread = thread::Builder::new().name("hg-invoke-service".to_owned());
        let thread = thread.spawn(move || serve(&stage));
        let why = |error| Error::Setup(format!("cannot start a service thread: {error}"));
        self.threads.push((end, thread.map_err(why)?));
        Ok(())
    }

    /// Ends them once what they have called has left, or `until` then; whether it has.
    pub(crate) fn finish(mut self, until: Option<Instant>) -> bool {
        self.end(End::Finished(until))
    }

    fn end(&mut self, how: End) -> bool {
        // Whoever has finished them has joined them, too.
        let _ = self.stage.0.set(how);
        self.threads.iter().for_each(|(end, _)| self.near.wake(*end));
        // Panics of functions are caught where they run.
        let ended = self.threads.drain(..).map(|(_, thread)| thread.join().unwrap_or(false));
        ended.fold(true, |all, one| all & one)
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}
