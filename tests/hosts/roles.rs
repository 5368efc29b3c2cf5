//! What a process on a host does when it is told to.
//!
//! A node serves everything, and answers each command with a line. Errors are lines, too: their kind, a colon,
//! their words.
//!
//! | command | what it does | answers |
//! |---|---|---|
//! | `call ADDRESS` | looks it up and calls | the way that the call went |
//! | `again ADDRESS` | calls the peer that was looked up last | the same |
//! | `echo ADDRESS LEN` | an argument and a result of so many bytes | the way |
//! | `expose LEN COUNT` | memory to read from, cut into `COUNT` segments | its descriptor |
//! | `accept LEN COUNT` | the same to be written to | its descriptor |
//! | `pull MEMORY COUNT`, `push ..` | moves all of it from or to `COUNT` segments | the way |
//! | `view MEMORY` | looks at it | the way |
//! | `forward ADDRESS MEMORY` | has somebody else pull it | the way that that one took |
//! | `filled` | looks at the memory that was last exposed | `yes` or `no` |
//! | `take` | takes all its memory back | `ok` |
//! | `within MS COMMAND` | one of those that move bytes, or the next one, with a deadline | the same, or the error |
//! | `forever ADDRESS` | a call that nobody answers | the error in which it ends |
//! | `loop COMMAND` | does it again and again | `done N`, or the error |
//! | `serving` | | requests in service, calls and transfers under way |
//! | `start COMMAND` | starts a job that does it | `started` |
//! | `stop`, `join` | tells loops to end, or not; waits for the jobs in their order | their answers, by ` | ` |

use std::{
    collections::BTreeMap,
    env, fmt,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use hg::{
    CallError, CallOptions, Engine, Peer, Request, Wait,
    bulk::{Bulk, Descriptor, Rights, Transfer, TransferError},
};

use crate::{
    common::{
        Child,
        child::{next_command, say},
    },
    hosts::Host,
    leftovers,
};

#[hg::rpc]
pub(crate) fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[hg::rpc]
pub(crate) fn echo(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// Declared only, and served by a future that ends when nobody waits any more.
#[hg::rpc]
fn never() -> u32;

/// Pulls memory of a third process; says by which way.
#[hg::rpc]
async fn pull_for(request: &Request, what: Descriptor) -> Result<String, String> {
    let engine = request.engine();
    let owner = engine.owner_of(&what).map_err(|error| error.to_string())?;
    let bytes = engine.fetch(&owner, &what).await.map_err(|error| error.to_string())?;
    let is_whole = bytes == pattern(bytes.len()) && bytes.len() as u64 == what.len();
    is_whole.then(|| engine.way_of(&owner)).ok_or_else(|| "wrong bytes".to_owned())
}

/// A process on a host.
pub(crate) struct Node {
    pub(crate) child: Child,
    /// Where it listens; or the error of its opening.
    pub(crate) address: String,
}

impl Node {
    /// Starts a node; see [`play_node`] for what it can be told.
    pub(crate) fn on(host: &Host, arguments: &str) -> Self {
        let node = Self::try_on(host, arguments, &[]);
        assert!(!node.address.starts_with("error"), "{}", node.address);
        node
    }

    /// The same, which may fail, with variables in its environment.
    pub(crate) fn try_on(host: &Host, arguments: &str, environment: &[(&str, &str)]) -> Self {
        let mut program = host.command(env::current_exe().expect("this program has a path"));
        // What was freed is to show in its resident memory.
        program.env("MALLOC_MMAP_THRESHOLD_", "131072");
        let mut child = Child::start_by(program, "node", arguments, environment);
        let address = child.hear();
        Self { child, address }
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.child.ask(command)
    }

    /// A part of its address, without the context.
    pub(crate) fn part(&self, scheme: &str) -> String {
        let address: hg::Address = self.address.parse().expect("its address");
        let part = if address.scheme() == scheme { Some(address) } else { address.part(scheme) };
        part.expect("it has this part").as_str().to_owned()
    }
}

/// Bytes that are the same in every process.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    static PERIOD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |place: u64| (place.wrapping_mul(2_654_435_761) >> 7 & 0xff).to_le_bytes()[0];
        (0..65_521).map(byte).collect()
    });
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&PERIOD[..PERIOD.len().min(len - bytes.len())]);
    }
    bytes
}

/// Plays a role to its end.
pub(crate) fn play(role: &str, arguments: &str) {
    let words = arguments.split_whitespace().filter_map(|word| word.split_once('='));
    let settings: BTreeMap<&str, &str> = words.collect();
    match role {
        "parrot" => {
            while let Some(line) = next_command() {
                say(&line);
            }
        }
        "node" => play_node(&settings),
        "builder" => leftovers::play_builder(),
        _ => panic!("no role is called {role}"),
    }
}

/// Settings: `url`, `routing`, `interface`, `subnet`, `bound` in milliseconds, `key-env`.
fn play_node(settings: &BTreeMap<&str, &str>) {
    let mut builder = hg::builder().listen(true).wait(Wait::Block);
    for (name, value) in settings {
        builder = match *name {
            "url" => builder,
            "bound" => builder.setting("silence-bound-ms", value),
            name => builder.setting(name, value),
        };
    }
    let url = settings.get("url").unwrap_or(&"tcp://");
    let engine = match builder.open(url) {
        Ok(engine) => engine,
        Err(error) => return say(&format!("error: {error}")),
    };
    serve_all(&engine);
    say(engine.address().as_str());
    let works = Arc::new(Works {
        engine,
        memory: Mutex::default(),
        peers: Mutex::default(),
        stopped: AtomicBool::new(false),
    });
    let mut jobs: Vec<JoinHandle<String>> = Vec::new();
    while let Some(command) = next_command() {
        match command.split_once(' ') {
            Some(("start", job)) => {
                let (works, job) = (Arc::clone(&works), job.to_owned());
                jobs.push(thread::spawn(move || works.answer(&job)));
                say("started");
            }
            None if command == "stop" || command == "join" => {
                // Relaxed: nothing goes with it.
                works.stopped.store(command == "stop", Ordering::Relaxed);
                let ended =
                    jobs.drain(..).map(|job| job.join().expect("a job that does not panic"));
                say(&ended.collect::<Vec<_>>().join(" | "));
                works.stopped.store(false, Ordering::Relaxed);
            }
            _ => say(&works.answer(&command)),
        }
    }
}

fn serve_all(engine: &Engine) {
    engine.register(add).expect("a fresh registry");
    engine.register(echo).expect("a fresh registry");
    engine.register(pull_for).expect("a fresh registry");
    let pending = |request: Request, ()| async move {
        request.cancelled().await;
        Ok(0)
    };
    engine.serve_async(never, pending).expect("a fresh registry");
}

/// An error as a line.
struct Failed(String);

impl<E: fmt::Display> From<CallError<E>> for Failed {
    fn from(error: CallError<E>) -> Self {
        let kind = match error {
            CallError::PeerGone { .. } => "PeerGone",
            CallError::DeadlineExceeded(_) => "DeadlineExceeded",
            CallError::Handler(_) => "Handler",
            _ => "another kind",
        };
        Self(format!("{kind}: {error}"))
    }
}

impl From<TransferError> for Failed {
    fn from(error: TransferError) -> Self {
        let kind = match error {
            TransferError::PeerGone { .. } => "PeerGone",
            TransferError::DeadlineExceeded => "DeadlineExceeded",
            TransferError::Stale => "Stale",
            _ => "another kind",
        };
        Self(format!("{kind}: {error}"))
    }
}

impl From<hg::Error> for Failed {
    fn from(error: hg::Error) -> Self {
        Self(format!("Error: {error}"))
    }
}

/// A deadline, or none.
type Within = Option<Duration>;

fn options(within: Within) -> CallOptions {
    within.map_or_else(CallOptions::default, CallOptions::within)
}

fn end_within(transfer: Transfer<'_>, within: Within) -> Transfer<'_> {
    match within {
        Some(deadline) => transfer.within(deadline),
        None => transfer,
    }
}

/// A node at work.
struct Works {
    engine: Engine,
    memory: Mutex<Vec<Bulk>>,
    /// As they were looked up last.
    peers: Mutex<BTreeMap<String, Peer>>,
    stopped: AtomicBool,
}

impl Works {
    fn answer(&self, command: &str) -> String {
        self.obey(command).unwrap_or_else(|Failed(words)| words)
    }

    fn obey(&self, command: &str) -> Result<String, Failed> {
        let mut words: Vec<&str> = command.split(' ').collect();
        let within = (words[0] == "within").then(|| {
            let rest = words.split_off(2);
            let millis = std::mem::replace(&mut words, rest)[1];
            Duration::from_millis(millis.parse().expect("a number"))
        });
        match words[..] {
            ["call", address] => self.call(&self.find(address)?),
            ["again", address] => self.call(&self.peers.lock().unwrap()[address]),
            ["echo", address, len] => self.echo(&self.find(address)?, number(len), within),
            ["expose", len, count] => {
                let memory = cut(&pattern(number(len)), number(count));
                self.expose(memory, Rights::READ)
            }
            ["accept", len, count] => {
                self.expose(cut(&vec![0; number(len)], number(count)), Rights::WRITE)
            }
            ["pull", memory, count] => self.pull(&from_hex(memory), number(count), within),
            ["push", memory, count] => self.push(&from_hex(memory), number(count), within),
            ["view", memory] => self.view(&from_hex(memory)),
            ["forward", address, memory] => {
                let peer = self.find(address)?;
                Ok(self.engine.call(pull_for, &peer, (from_hex(memory),)).wait()?)
            }
            ["filled"] => Ok(self.filled()?),
            ["take"] => Ok(self.take()),
            ["forever", address] => {
                let peer = self.find(address)?;
                Ok(self.engine.call_with(never, &peer, (), options(within)).wait()?.to_string())
            }
            ["loop", ..] => self.repeat(&command["loop ".len()..]),
            ["serving"] => Ok(format!(
                "{} {} {}",
                self.engine.requests_in_service(),
                self.engine.calls_under_way(),
                self.engine.transfers_under_way()
            )),
            _ => panic!("a node knows no `{command}`"),
        }
    }

    fn find(&self, address: &str) -> Result<Peer, Failed> {
        let peer = self.engine.lookup(address)?;
        self.peers.lock().unwrap().insert(address.to_owned(), peer);
        Ok(peer)
    }

    fn call(&self, peer: &Peer) -> Result<String, Failed> {
        let sum = self.engine.call(add, peer, (20, 22)).wait()?;
        assert_eq!(sum, 42);
        Ok(self.engine.way_of(peer))
    }

    fn echo(&self, peer: &Peer, len: usize, within: Within) -> Result<String, Failed> {
        let bytes = pattern(len);
        let back = self.engine.call_with(echo, peer, (&bytes,), options(within)).wait()?;
        assert!(back == bytes, "wrong bytes came back");
        Ok(self.engine.way_of(peer))
    }

    fn expose(&self, memory: Vec<Vec<u8>>, rights: Rights) -> Result<String, Failed> {
        let bulk = self.engine.expose(memory, rights)?;
        let descriptor = to_hex(&bulk.bound_descriptor());
        self.memory.lock().unwrap().push(bulk);
        Ok(descriptor)
    }

    fn pull(&self, what: &Descriptor, count: usize, within: Within) -> Result<String, Failed> {
        let owner = self.engine.owner_of(what)?;
        let len = usize::try_from(what.len()).expect("it lies in the address space");
        let bulk = self.engine.expose(cut(&vec![0; len], count), Rights::empty())?;
        let result = end_within(self.engine.pull(&owner, what, &bulk), within).wait();
        // Also that of a transfer that has failed.
        let bytes = bulk.into_vec().expect("the transfer is over");
        result?;
        assert!(bytes == pattern(len), "wrong bytes were pulled");
        Ok(self.engine.way_of(&owner))
    }

    fn push(&self, what: &Descriptor, count: usize, within: Within) -> Result<String, Failed> {
        let owner = self.engine.owner_of(what)?;
        let len = usize::try_from(what.len()).expect("it lies in the address space");
        let bulk = self.engine.expose(cut(&pattern(len), count), Rights::empty())?;
        let result = end_within(self.engine.push(&owner, &bulk, what), within).wait();
        bulk.into_memory().expect("the transfer is over");
        result?;
        Ok(self.engine.way_of(&owner))
    }

    fn view(&self, what: &Descriptor) -> Result<String, Failed> {
        let owner = self.engine.owner_of(what)?;
        let seen = self.engine.view(&owner, what).wait()?.to_vec()?;
        assert!(seen == pattern(seen.len()) && seen.len() as u64 == what.len(), "wrong bytes");
        Ok(self.engine.way_of(&owner))
    }

    fn filled(&self) -> Result<String, Failed> {
        let memory = self.memory.lock().unwrap();
        let bytes = memory.last().expect("something was exposed").to_vec()?;
        Ok(if bytes == pattern(bytes.len()) { "yes" } else { "no" }.to_owned())
    }

    /// Memory that was exposed is free again: nobody holds on to it.
    fn take(&self) -> String {
        let all = std::mem::take(&mut *self.memory.lock().unwrap());
        let taken: Result<Vec<_>, _> = all.into_iter().map(Bulk::into_memory).collect();
        taken.map_or_else(|busy| busy.to_string(), |_| "ok".to_owned())
    }

    fn repeat(&self, command: &str) -> Result<String, Failed> {
        let mut rounds = 0_u64;
        // Relaxed: nothing goes with it.
        while !self.stopped.load(Ordering::Relaxed) {
            self.obey(command)?;
            rounds += 1;
        }
        Ok(format!("done {rounds}"))
    }
}

/// Bytes in so many segments, of which none is like the other where there are several.
fn cut(bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut segments = Vec::with_capacity(count);
    for left in (1..=count).rev() {
        let fair = rest.len() / left;
        let len = if left == 1 { rest.len() } else { fair - fair.min(left % 3) };
        let (segment, others) = rest.split_at(len);
        segments.push(segment.to_vec());
        rest = others;
    }
    segments
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// Words for a pipe.
fn to_hex(descriptor: &Descriptor) -> String {
    descriptor.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Descriptor {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digits).collect();
    Descriptor::decode(&bytes).expect("the descriptor of an honest process")
}
