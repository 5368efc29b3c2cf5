//! Service threads: the library's own, which run what others call. How one serves: [`Worker::serve`](crate::Worker).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread::{self, JoinHandle},
};

use hg_channel::Near;

use crate::Error;

/// The service threads of a process. They end when this is dropped, by the last worker.
#[derive(Debug)]
pub(crate) struct Services {
    stage: Arc<Stage>,
    has_finished: AtomicBool,
    near: Arc<Near>,
    threads: Vec<(u32, JoinHandle<()>)>,
}

/// How far the workers of the process are.
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

const WORKING: u8 = 0;
const FINISHED: u8 = 1;
const DROPPED: u8 = 2;

impl Stage {
    /// One of them is there, at least.
    pub(crate) fn is_working(&self) -> bool {
        self.0.load(Ordering::Acquire) == WORKING
    }

    /// None is, and none has finished: what has not left is dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.0.load(Ordering::Acquire) == DROPPED
    }
}

impl Services {
    pub(crate) fn new(near: &Arc<Near>) -> Self {
        let (stage, has_finished) = Default::default();
        Self { stage, has_finished, near: Arc::clone(near), threads: Vec::new() }
    }

    /// Starts one, which has this number.
    pub(crate) fn start(
        &mut self,
        end: u32,
        serve: impl FnOnce(&Stage) + Send + 'static,
    ) -> Result<(), Error> {
        let stage = Arc::clone(&self.stage);
        let thread = thread::Builder::new().name("hg-invoke-service".to_owned());
        let thread = thread.spawn(move || serve(&stage));
        let why = |error| Error::Setup(format!("cannot start a service thread: {error}"));
        self.threads.push((end, thread.map_err(why)?));
        Ok(())
    }

    /// What they have called leaves before they end.
    pub(crate) fn finish(&self) {
        // Relaxed: whoever drops the last handle sees it by the handle's count.
        self.has_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let has_finished = self.has_finished.load(Ordering::Relaxed);
        self.stage.0.store(if has_finished { FINISHED } else { DROPPED }, Ordering::Release);
        self.threads.iter().for_each(|(end, _)| self.near.wake(*end));
        for (_, thread) in self.threads.drain(..) {
            // Panics of functions are caught where they run.
            let _ = thread.join();
        }
    }
}
