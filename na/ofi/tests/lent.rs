//! Put and get between contexts of one process over every provider that this machine offers, with one-sided
//! operations and without, and what becomes of memory that was lent when its transfer ends early.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Domain, Error, Memory, Op, OpenOptions, Peer, Plugin as _,
    Region, Returned, Rights,
};
use hg_na_ofi::OfiPlugin;
use watchdog::in_time;

const LEN: usize = 300_000;

fn open(url: &str, settings: &[(&str, &str)]) -> Result<Arc<dyn Domain>, Error> {
    let mut options = OpenOptions::listening();
    for (name, value) in settings {
        options.settings.insert((*name).to_owned(), (*value).to_owned());
    }
    OfiPlugin.open(&Address::new(url)?, &options)
}

/// Two domains of one process, and the handle of the second one's context at the first one's.
struct Pair {
    domains: [Arc<dyn Domain>; 2],
    contexts: [Box<dyn Context>; 2],
    to: Peer,
    done: Vec<Completion>,
    last: u64,
}

impl Pair {
    fn open(url: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let domains = [open(url, settings)?, open(url, settings)?];
        let mut contexts = [domains[0].context(0)?, domains[1].context(0)?];
        let address = contexts[1].address().clone();
        let to = contexts[0].lookup(&address)?;
        let mut pair = Self { domains, contexts, to, done: Vec::new(), last: 0 };
        pair.run(|_, to| Op::SendUnexpected { to, message: b"hello".to_vec().into() });
        Ok(pair)
    }

    /// Progresses the first `active` contexts, and checks what the first one was told.
    fn until(&mut self, active: usize, mut holds: impl FnMut(&[Completion]) -> bool) {
        let start = Instant::now();
        let mut others = Vec::new();
        while !holds(&self.done) {
            in_time!(start, "it did not happen: {:?}", self.done);
            self.contexts[0].progress(Instant::now(), &mut self.done).unwrap();
            if active > 1 {
                self.contexts[1].progress(Instant::now(), &mut others).unwrap();
            }
        }
    }

    fn post(&mut self, op: impl FnOnce(&Self, Peer) -> Op) -> hg_na::OpId {
        self.last += 1;
        let op = op(self, self.to);
        self.contexts[0].post(self.last, op).unwrap()
    }

    /// Posts something of the first one's, and waits for its success.
    fn run(&mut self, op: impl FnOnce(&Self, Peer) -> Op) {
        self.post(op);
        let token = self.last;
        self.until(2, |done| ended(done, token).is_some());
        assert_eq!(ended(&self.done, token).unwrap(), None);
    }

    fn register(&self, place: usize, memory: impl Into<Memory>) -> Region {
        self.domains[place].register(memory.into(), Rights::all()).unwrap()
    }
}

/// How an operation has ended: `Some(None)` well.
fn ended(done: &[Completion], token: u64) -> Option<Option<String>> {
    done.iter().find_map(|it| match it {
        Completion::Done(done) if done.token == token => {
            Some(done.result.as_ref().err().map(|failure| failure.error.to_string()))
        }
        _ => None,
    })
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| u8::try_from((at * 7 + seed) % 251).unwrap()).collect()
}

/// In three pieces.
fn pieces(bytes: &[u8]) -> Vec<Vec<u8>> {
    vec![bytes[..5].to_vec(), bytes[5..200_000].to_vec(), bytes[200_000..].to_vec()]
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Moves everything both ways, in one piece and in several on either side.
fn moves(url: &str, settings: &[(&str, &str)]) -> Result<(), Error> {
    let mut pair = Pair::open(url, settings)?;
    for (mine, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let memory = |cut, bytes: Vec<u8>| {
            if cut { Memory::from(pieces(&bytes)) } else { Memory::from(bytes) }
        };
        let here = pair.register(0, memory(mine, pattern(1)));
        let there = pair.register(1, memory(theirs, vec![0; LEN]));
        let remote = there.descriptor().slice(0, LEN as u64).unwrap();
        let local = here.slice(0, LEN as u64).unwrap();
        pair.run(|_, to| Op::Put { to, local, remote: remote.clone() });
        assert!(bytes_of(&there) == pattern(1), "{url}: put");
        there.write(0, &pattern(9)).unwrap();
        let local = here.slice(0, LEN as u64).unwrap();
        pair.run(|_, from| Op::Get { from, local, remote });
        assert!(bytes_of(&here) == pattern(9), "{url}: get");
        pair.done.clear();
        drop((here.unregister().unwrap(), there.unregister().unwrap()));
    }
    Ok(())
}

#[test]
fn transfers_move_the_same_bytes_with_one_sided_operations_and_without() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        moves(url, &[]).unwrap();
        moves(url, &[("rma", "off")]).unwrap();
    }
}

#[test]
fn a_get_that_is_cancelled_while_its_owner_sleeps_leaves_nothing_to_a_late_writer() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let mut pair = Pair::open(url, &[]).unwrap();
        let here = pair.register(0, pattern(1));
        let there = pair.register(1, pattern(2));
        let remote = there.descriptor().slice(0, LEN as u64).unwrap();
        let local = here.slice(0, LEN as u64).unwrap();
        let id = pair.post(|_, from| Op::Get { from, local, remote: remote.clone() });
        // The owner makes no progress: only the question is under way.
        for _ in 0..1000 {
            pair.contexts[0].progress(Instant::now(), &mut pair.done).unwrap();
        }
        pair.contexts[0].cancel(id);
        let token = pair.last;
        pair.until(1, |done| ended(done, token).is_some());
        assert_eq!(ended(&pair.done, token).unwrap(), Some(Error::Cancelled.to_string()));
        assert!(pair.done.iter().any(|it| matches!(
            it,
            Completion::Done(done) if done.token == token && matches!(done.returned, Returned::Slice(_))
        )));
        // Its memory is used for something else; then the owner wakes up.
        pair.done.clear();
        here.write(0, &pattern(3)).unwrap();
        for _ in 0..3 {
            pair.run(|_, to| Op::SendUnexpected { to, message: b"still there".to_vec().into() });
        }
        assert!(bytes_of(&here) == pattern(3), "{url}: a late writer");
        let local = here.slice(0, LEN as u64).unwrap();
        pair.run(|_, from| Op::Get { from, local, remote });
        assert!(bytes_of(&here) == pattern(2), "{url}: the same again");
        pair.done.clear();
        assert!(here.unregister().unwrap().into_vec().unwrap() == pattern(2));
    }
}

/// Other providers with reliable unconnected endpoints, where libfabric has them.
#[test]
#[expect(clippy::print_stdout, reason = "says what this machine lacks")]
fn further_providers_move_the_same_bytes() {
    for provider in ["net", "sockets", "udp"] {
        match moves(&format!("ofi+{provider}://127.0.0.1"), &[]) {
            Ok(()) => {}
            Err(error) => println!("ofi+{provider}: {error}"),
        }
    }
}
