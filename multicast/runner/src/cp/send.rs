//! The sender's side: hosts are asked what they have, and what any of them lacks goes to all in one group. When a host fails, the
//! others go on without it, from where they are.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hg::{Address, Call, CallError, Peer};
use hg_job_runner::{
    samples::{Sampler, bar},
    say::say,
};
use hg_multicast::{Completion, Failure, Group, GroupId, Multicast};
use hg_multicast_copy::{
    offer::{Held, Offer, Trouble, What},
    outgoing::Outgoing,
    path::Below,
    plan::plan,
    source::Source,
};

use crate::{
    NAME,
    arguments::{Arguments, Target},
    engine,
    key::Key,
    protocol::{self, Members, PART, Session, WINDOW},
    receive::options,
    report::{OfHost, Report},
    started::Started,
};

/// Copies; what came of it.
pub(crate) fn run(arguments: &Arguments) -> Result<Report, String> {
    let (files, targets) = arguments.files_and_targets()?;
    arguments.settings()?;
    let source =
        Source::gather(&files, arguments.recursive).map_err(|trouble| trouble.to_string())?;
    let key = key(arguments, &targets)?;
    let multicast = engine::open(arguments, key)?;
    let start = Instant::now();
    let hosts = start_all(arguments, key, &targets);
    let offer = Offer {
        block: arguments.block_size,
        force: arguments.force,
        preserve: arguments.preserve,
        into: None,
        entries: source.entries.clone(),
    };
    offer.check().map_err(|trouble| trouble.to_string())?;
    let mut session = Session::default();
    getrandom::fill(&mut session)
        .map_err(|error| format!("the system gives no random numbers: {error}"))?;
    let mut copy = Copy {
        multicast,
        source: &source,
        offer,
        session,
        hosts,
        sent: 0,
        failed: Vec::new(),
        progress: Arc::default(),
    };
    let bar = copy.show(arguments)?;
    while copy.attempt() {}
    drop(bar.end());
    Ok(copy.report(start.elapsed()))
}

/// What all hosts of this copy have.
fn key(arguments: &Arguments, targets: &[Target]) -> Result<Option<Key>, String> {
    let is_started = |target: &Target| matches!(target, Target::Host { .. });
    match &arguments.key_file {
        Some(path) => Key::read(path).map(Some),
        None if targets.iter().all(is_started) => Key::random().map(Some),
        None if arguments.open && !targets.iter().any(is_started) => Ok(None),
        None => Err("receivers that were started by hand have a key: --key-file FILE, or --open if they have none".to_owned()),
    }
}

/// A host that is copied to.
#[derive(Debug)]
struct Host {
    name: String,
    into: Option<Below>,
    address: Option<String>,
    /// Kept until the copy is over.
    _started: Option<Started>,
    /// `None`: under way.
    outcome: Option<Result<(), String>>,
}

impl Host {
    fn fail(&mut self, why: &dyn std::fmt::Display) {
        say(&format!("{NAME}: {}: {why}", self.name));
        self.outcome = Some(Err(why.to_string()));
    }
}

/// All at a time: most of it is waiting.
fn start_all(arguments: &Arguments, key: Option<Key>, targets: &[Target]) -> Vec<Host> {
    let start = |target: &Target| match target {
        Target::Address { address, folder } => Host {
            name: address.clone(),
            into: folder.clone(),
            address: Some(address.clone()),
            _started: None,
            outcome: None,
        },
        Target::Host { host, folder } => {
            let key = key.expect("there is one where a receiver is started");
            let started = Started::start(arguments, key, host, folder);
            let mut this = Host {
                name: host.clone(),
                into: None,
                address: None,
                _started: None,
                outcome: None,
            };
            match started {
                Ok((started, address)) => {
                    this.address = Some(address);
                    this._started = Some(started);
                }
                Err(why) => this.fail(&why),
            }
            this
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            targets.iter().map(|target| scope.spawn(move || start(target))).collect();
        threads.into_iter().map(|thread| thread.join().expect("starting does not panic")).collect()
    })
}

/// A copy under way.
struct Copy<'a> {
    multicast: Multicast,
    source: &'a Source,
    offer: Offer,
    session: Session,
    hosts: Vec<Host>,
    /// Bytes that have travelled, once for all hosts.
    sent: u64,
    /// Files that could not be read.
    failed: Vec<String>,
    progress: Arc<Progress>,
}

/// Bytes that are to travel, and those that have.
#[derive(Debug, Default)]
struct Progress {
    total: AtomicU64,
    done: AtomicU64,
}

/// What one call asks of the hosts that are under way.
type Asked<T> = Vec<(usize, T)>;

impl Copy<'_> {
    /// Once through all of it, with all hosts that have not failed; whether it has to be done again, since one has.
    fn attempt(&mut self) -> bool {
        let peers = self.peers();
        let held = self.offer(&peers);
        if held.is_empty() {
            return false;
        }
        let claims: Vec<Vec<Held>> = held.iter().map(|(_, held)| held.clone()).collect();
        let planned = match plan(&self.offer, &claims, |entry| self.source.sums(&self.offer, entry))
        {
            Ok(planned) => planned,
            Err(trouble) => {
                held.iter().for_each(|(host, _)| self.hosts[*host].fail(&trouble));
                return false;
            }
        };
        let same = held.iter().map(|(host, _)| *host).zip(planned.same.iter().cloned()).collect();
        let settled = self.settle(&peers, same);
        if settled.is_empty() {
            return false;
        }
        let Some(group) = self.group(&peers, &settled) else { return true };
        // Relaxed: figures for the eye.
        self.progress.total.store(planned.bytes, Ordering::Relaxed);
        let source = self.source;
        let offer = self.offer.clone();
        let mut outgoing = Outgoing::new(source, &offer, planned);
        let sent = self.send(group, &mut outgoing);
        self.failed = outgoing.failed().iter().map(ToString::to_string).collect();
        match sent {
            Ok(()) => {
                self.finish(&peers, &settled);
                false
            }
            Err(why) => self.lose(&settled, &why),
        }
    }

    /// The hosts that are under way, as the engine knows them.
    fn peers(&mut self) -> Vec<Option<Peer>> {
        let (engine, mut peers) = (self.multicast.engine().clone(), Vec::new());
        for host in &mut self.hosts {
            let address = host.address.as_ref().filter(|_| host.outcome.is_none());
            peers.push(match address.map(|address| engine.lookup(address.as_str())) {
                None => None,
                Some(Ok(peer)) => Some(peer),
                Some(Err(error)) => {
                    host.fail(&error);
                    None
                }
            });
        }
        peers
    }

    fn offer(&mut self, peers: &[Option<Peer>]) -> Asked<Vec<Held>> {
        let engine = self.multicast.engine().clone();
        let peers = (0..).zip(peers).filter_map(|(host, peer)| Some((host, peer.as_ref()?)));
        let calls: Vec<_> = peers
            .map(|(host, peer): (usize, _)| {
                let offer = Offer { into: self.hosts[host].into.clone(), ..self.offer.clone() };
                (host, engine.call(protocol::offer, peer, (self.session, offer)))
            })
            .collect();
        let answers = self.answers(calls, Call::wait);
        self.without_failed(answers)
    }

    fn settle(&mut self, peers: &[Option<Peer>], same: Asked<Vec<u32>>) -> Vec<usize> {
        let engine = self.multicast.engine().clone();
        let peer = |host: usize| peers[host].as_ref().expect("it has answered");
        let calls = same.into_iter();
        let calls: Vec<_> = calls
            .map(|(host, same)| {
                (host, engine.call(protocol::settle, peer(host), (self.session, same)))
            })
            .collect();
        let answers = self.answers(calls, Call::wait);
        self.without_failed(answers).into_iter().map(|(host, ())| host).collect()
    }

    /// Waits for all of them, and says whom it waits for long.
    fn answers<C, T>(&self, asked: Asked<C>, wait: impl Fn(C) -> T) -> Asked<T> {
        let late = Late::default();
        thread::scope(|scope| {
            scope.spawn(|| late.watch(|host| say_silent(&self.hosts[host].name)));
            let answers = asked.into_iter().map(|(host, call)| {
                late.wait_for(Some(host));
                (host, wait(call))
            });
            let answers = answers.collect();
            late.wait_for(None);
            answers
        })
    }

    /// Forms the group; none when a host did not join it.
    fn group(&mut self, peers: &[Option<Peer>], hosts: &[usize]) -> Option<Group> {
        let formed = self.form(hosts);
        let (group, id, addresses) = match formed {
            Ok(formed) => formed,
            Err(why) => {
                hosts.iter().for_each(|host| self.hosts[*host].fail(&why));
                return None;
            }
        };
        let engine = self.multicast.engine().clone();
        let calls: Vec<_> = (1..)
            .zip(hosts)
            .map(|(own, host)| {
                let (group, addresses) = (id.to_bytes(), addresses.clone());
                let members = Members { group, block: self.offer.block, addresses, own };
                let peer = peers[*host].as_ref().expect("it has answered");
                (*host, engine.call(protocol::join, peer, (self.session, members)))
            })
            .collect();
        let answers = self.answers(calls, Call::wait);
        let joined = self.without_failed(answers);
        (joined.len() == hosts.len()).then_some(group)
    }

    fn form(&self, hosts: &[usize]) -> Result<(Group, GroupId, Vec<String>), String> {
        let id = GroupId::random().map_err(|error| error.to_string())?;
        let own = self.multicast.address().to_string();
        let theirs = hosts.iter().filter_map(|host| self.hosts[*host].address.clone());
        let addresses: Vec<String> = [own].into_iter().chain(theirs).collect();
        let parsed: Result<Vec<Address>, hg::Error> =
            addresses.iter().map(|it| it.parse()).collect();
        let parsed = parsed.map_err(|error| error.to_string())?;
        let nobody = |_: hg_multicast::Incoming<'_>| Err("the sender receives nothing".to_owned());
        let group = self.multicast.group(id, &parsed, 0, options(self.offer.block), nobody);
        Ok((group.map_err(|error| error.to_string())?, id, addresses))
    }

    /// Sends all parts, a few at a time, and closes the group.
    fn send(
        &mut self,
        group: Group,
        outgoing: &mut Outgoing<'_>,
    ) -> Result<(), hg_multicast::Error> {
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < WINDOW
                && let Some(part) = outgoing.next_part(PART)
            {
                let len = part.len() as u64;
                under_way.push_back((len, group.send(part, &[])?));
            }
            let Some((len, sending)) = under_way.pop_front() else { break };
            self.wait(&group, sending)?;
            self.sent += len;
        }
        group.close().wait()?;
        Ok(())
    }

    /// Waits for a part, and says meanwhile how far all of them are.
    fn wait(
        &self,
        group: &Group,
        mut sending: Completion<Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let (mut moved, mut is_said) = ((0, Instant::now()), false);
        loop {
            let bytes = group.progress().bytes;
            // Relaxed: a figure for the eye.
            self.progress.done.store(bytes, Ordering::Relaxed);
            match sending.wait_within(TICK) {
                Ok(sent) => return sent,
                Err(unfinished) => sending = unfinished,
            }
            if bytes != moved.0 {
                (moved, is_said) = ((bytes, Instant::now()), false);
            } else if moved.1.elapsed() >= PATIENCE && !std::mem::replace(&mut is_said, true) {
                say_silent("one of the hosts");
            }
        }
    }

    /// Takes the host out whose fault it is; whether there is another attempt.
    fn lose(&mut self, hosts: &[usize], why: &hg_multicast::Error) -> bool {
        let lost = match why {
            hg_multicast::Error::Failed(failure) => {
                let at = (failure.member as usize).checked_sub(1);
                at.and_then(|at| hosts.get(at)).map(|host| (*host, failure.why.clone()))
            }
            _ => None,
        };
        if let Some((host, why)) = lost {
            self.hosts[host].fail(&why);
            return true;
        }
        hosts.iter().for_each(|host| self.hosts[*host].fail(why));
        false
    }

    fn finish(&mut self, peers: &[Option<Peer>], hosts: &[usize]) {
        let engine = self.multicast.engine().clone();
        let peer = |host: usize| peers[host].as_ref().expect("it has answered");
        let calls: Vec<_> = hosts
            .iter()
            .map(|host| (*host, engine.call(protocol::finish, peer(*host), (self.session,))))
            .collect();
        let answers = self.answers(calls, Call::wait);
        for (host, ()) in self.without_failed(answers) {
            self.hosts[host].outcome = Some(Ok(()));
        }
    }

    /// Says which hosts have failed, and leaves them out.
    fn without_failed<T>(&mut self, answers: Asked<Result<T, CallError<Trouble>>>) -> Asked<T> {
        let mut left = Vec::new();
        for (host, answer) in answers {
            match answer {
                Ok(answer) => left.push((host, answer)),
                Err(CallError::Handler(trouble)) => self.hosts[host].fail(&trouble),
                Err(error) => self.hosts[host].fail(&error),
            }
        }
        left
    }

    /// A bar on a terminal.
    fn show(&self, arguments: &Arguments) -> Result<Sampler<(u64, u64, Duration)>, String> {
        use std::io::IsTerminal as _;
        if arguments.quiet || !std::io::stderr().is_terminal() {
            return Ok(Sampler::idle());
        }
        let progress = Arc::clone(&self.progress);
        // Relaxed: figures for the eye.
        let look = move |time| {
            (progress.done.load(Ordering::Relaxed), progress.total.load(Ordering::Relaxed), time)
        };
        Sampler::start(look, Some(line)).map_err(|error| format!("a thread: {error}"))
    }

    fn report(self, took: Duration) -> Report {
        let hosts = self.hosts.into_iter().map(|host| OfHost {
            host: host.name,
            error: host.outcome.unwrap_or_else(|| Err("is not finished".to_owned())).err(),
        });
        let files =
            self.offer.entries.iter().filter(|entry| matches!(entry.what, What::File(_))).count();
        self.failed.iter().for_each(|why| say(&format!("{NAME}: {why}")));
        Report {
            hosts: hosts.collect(),
            files: files as u64,
            bytes: self.source.bytes(),
            sent_bytes: self.sent,
            seconds: took.as_secs_f64(),
        }
    }
}

fn say_silent(who: &str) {
    let seconds = PATIENCE.as_secs();
    say(&format!("{NAME}: {who} has not answered for {seconds} s: stopped, overloaded or cut off"));
}

/// Whose answer is waited for; somebody is told when that takes long.
#[derive(Debug, Default)]
struct Late {
    /// `None`: for the first, or no more; and how many it were before.
    awaited: Mutex<(Option<usize>, u64)>,
    changed: Condvar,
}

impl Late {
    fn wait_for(&self, host: Option<usize>) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        *awaited = (host, awaited.1 + 1);
        self.changed.notify_all();
    }

    /// Until nobody is waited for.
    fn watch(&self, mut say: impl FnMut(usize)) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (host, before) = *awaited;
            if host.is_none() && before > 0 {
                return;
            }
            let is_same = |it: &mut (Option<usize>, u64)| it.1 == before;
            let waited = self.changed.wait_timeout_while(awaited, PATIENCE, is_same);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            awaited = now;
            if let (true, Some(host)) = (timeout.timed_out(), host) {
                say(host);
                let changed = self.changed.wait_while(awaited, is_same);
                awaited = changed.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
fn line(seen: &[(u64, u64, Duration)], is_over: bool) -> String {
    let Some((done, total, time)) = seen.last() else { return String::new() };
    let (done, total) = (*done.min(total) as f64, *total as f64);
    let rate = done / 1e6 / time.as_secs_f64().max(1e-3);
    bar(
        done / total.max(1.0),
        &format!("{:.1} of {:.1} MB, {rate:.0} MB/s", done / 1e6, total / 1e6),
        is_over,
    )
}

/// Who does not answer for so long is named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at how far it is.
const TICK: Duration = Duration::from_millis(100);
