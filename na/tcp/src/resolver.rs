//! Host names, resolved by threads of the domain's: the system's resolver blocks.

use std::{
    collections::VecDeque,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use hg_na::Peer;

use crate::inbox::{Inbox, Parcel};

/// Names that are resolved at a time; a name that nobody answers for holds one up for seconds.
const THREADS_MAX: usize = 4;

/// A name for a link.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) name: Box<str>,
    pub(crate) port: u16,
    pub(crate) peer: Peer,
    pub(crate) inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct State {
    questions: VecDeque<Question>,
    threads: usize,
}

/// The names of a domain that wait for an answer.
#[derive(Debug, Default)]
pub(crate) struct Resolver(Mutex<State>);

impl Resolver {
    /// Resolves elsewhere; the answer comes to the inbox.
    pub(crate) fn ask(self: &Arc<Self>, question: Question) {
        let mut state = self.lock();
        if state.threads < THREADS_MAX {
            let resolver = Arc::clone(self);
            let named = thread::Builder::new().name("hg-tcp-names".to_owned());
            // Its end is seen by nobody: it ends when no question is left.
            match named.spawn(move || resolver.work()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    drop(state);
                    return answer(question, Err(format!("no thread for its name: {error}")));
                }
                Err(_) => {}
            }
        }
        state.questions.push_back(question);
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let Some(question) = state.questions.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let found = (&*question.name, question.port).to_socket_addrs();
            let found = match found.map(Iterator::collect::<Vec<_>>) {
                Ok(addresses) if !addresses.is_empty() => Ok(addresses),
                Ok(_) => Err(format!("the name {} has no address", question.name)),
                Err(error) => Err(format!("the name {} has no address: {error}", question.name)),
            };
            answer(question, found);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(question: Question, found: Result<Vec<SocketAddr>, String>) {
    question.inbox.push(Parcel::Resolved { peer: question.peer, found });
}
