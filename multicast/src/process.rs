//! What all groups of a process have in common, and how it ends.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use crate::inbox::{Inbox, Input};

pub(crate) struct Process {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) engine: hg::Engine,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Process {
    pub(crate) fn new(inbox: Arc<Inbox>, engine: hg::Engine, thread: JoinHandle<()>) -> Self {
        Self { inbox, engine, thread: Mutex::new(Some(thread)) }
    }

    /// Ends the thread, and the engine.
    pub(crate) fn close(&self) {
        self.inbox.tell(Input::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| !Inbox::is_driver()) {
            let _ = thread.join();
        }
        self.engine.close();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close();
    }
}
