//! The sender's side: hosts are asked what they have, and what any of them lacks goes to all in one group. When a host fails, the
//! others go on without it, from where they are.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use hg::{Address, Call, CallError, CallOptions, GoneReason, Peer};
use hg_job_runner::{
    samples::{Sampler, bar},
    say::say,
};
use hg_multicast::{Completion, Failure, Group, GroupId, Multicast};
use hg_multicast_copy::{
    offer::{Held, Offer, Trouble, What},
    outgoing::Outgoing,
    plan::plan,
    source::Source,
};

use crate::{
    NAME,
    arguments::{Arguments, Target},
    engine,
    hosts::{Host, PATIENCE, Stall, start_all},
    key::Key,
    protocol::{self, Members, PART, SIGN_WITHIN, Session, WINDOW},
    receive::options,
    report::{OfHost, Report},
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
        give_up: arguments.give_up.map(|it| Duration::from_secs(it.into())),
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

/// A copy under way.
struct Copy<'a> {
    multicast: Multicast,
    source: &'a Source,
    offer: Offer,
    session: Session,
    /// How long a host may give no sign of life.
    give_up: Option<Duration>,
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
        let planned = plan(&self.offer, &claims, |entry| self.source.sums(&self.offer, entry));
        let same = held.iter().map(|(host, _)| *host).zip(planned.same.iter().cloned()).collect();
        let lost: Vec<u32> = planned.lost.iter().map(|it| it.0).collect();
        let settled = self.settle(&peers, same, &lost);
        if settled.is_empty() {
            return false;
        }
        let Some(group) = self.group(&peers, &settled) else { return true };
        // Relaxed: figures for the eye.
        self.progress.total.store(planned.bytes, Ordering::Relaxed);
        let source = self.source;
        let offer = self.offer.clone();
        let mut outgoing = Outgoing::new(source, &offer, planned);
        let sent = self.send(group, &settled, &mut outgoing);
        self.failed = outgoing.failed().iter().map(ToString::to_string).collect();
        match sent {
            Ok(()) => {
                self.finish(&peers, &settled);
                false
            }
            Err(Stopped::Silent) => true,
            Err(Stopped::Failed(why)) => self.lose(&settled, &why),
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
        let answers = self.answers(calls);
        self.without_failed(answers)
    }

    fn settle(
        &mut self,
        peers: &[Option<Peer>],
        same: Asked<Vec<u32>>,
        lost: &[u32],
    ) -> Vec<usize> {
        let engine = self.multicast.engine().clone();
        let peer = |host: usize| peers[host].as_ref().expect("it has answered");
        let calls = same.into_iter();
        let calls: Vec<_> = calls
            .map(|(host, same)| {
                let settle = (self.session, same, lost.to_vec());
                (host, engine.call(protocol::settle, peer(host), settle))
            })
            .collect();
        let answers = self.answers(calls);
        self.without_failed(answers).into_iter().map(|(host, ())| host).collect()
    }

    /// Waits for all of them; names those of which there is no sign of life, and does not wait for them longer than is wanted.
    fn answers<C: Future + Unpin>(&mut self, mut asked: Asked<C>) -> Asked<C::Output> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let (mut answers, mut stall) = (Vec::new(), Stall::default());
        loop {
            asked.retain_mut(|(host, call)| match Pin::new(call).poll(&mut context) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    answers.push((*host, answer));
                    false
                }
            });
            if asked.is_empty() {
                answers.sort_unstable_by_key(|it| it.0);
                return answers;
            }
            thread::park_timeout(TICK);
            let waited_for: Vec<_> = asked.iter().map(|it| it.0).collect();
            let lost = self.look(&mut stall, answers.len() as u64, &waited_for);
            asked.retain(|it| !lost.contains(&it.0));
        }
    }

    /// Looks after hosts that are waited for, when nothing has moved for a while: `moved` is how far they are. Gives those that are not waited
    /// for any longer, which have failed.
    fn look(&mut self, stall: &mut Stall, moved: u64, hosts: &[usize]) -> Vec<usize> {
        let is_due = stall.is_due(moved, self.give_up.map_or(PATIENCE, |it| it.min(PATIENCE)));
        if !is_due {
            return Vec::new();
        }
        let asked = Instant::now();
        let silent = self.silent(hosts);
        for host in &silent {
            if stall.said.insert(Some(*host)) {
                let name = &self.hosts[*host].name;
                say(&format!(
                    "{NAME}: {name} gives no sign of life: stopped, overloaded or cut off"
                ));
            }
        }
        if silent.is_empty() && stall.said.insert(None) {
            say(&format!("{NAME}: nothing moves, though all hosts answer: it may be their disks"));
        }
        let lost = stall.silent_for(&silent, asked, self.give_up);
        for host in &lost {
            self.hosts[*host].give_up();
        }
        lost
    }

    /// Those of these hosts that do not answer at once.
    fn silent(&self, hosts: &[usize]) -> Vec<usize> {
        let engine = self.multicast.engine();
        let call = |host: &usize| {
            let peer = engine.lookup(self.hosts[*host].address.as_deref()?).ok()?;
            let within = CallOptions::within(SIGN_WITHIN);
            Some((*host, engine.call_with(protocol::here, &peer, (), within)))
        };
        let calls: Vec<_> = hosts.iter().filter_map(call).collect();
        let is_silent = |(host, call): (usize, Call<'_, protocol::here>)| {
            matches!(call.wait(), Err(CallError::DeadlineExceeded(_))).then_some(host)
        };
        calls.into_iter().filter_map(is_silent).collect()
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
                let names = self.names(hosts);
                let members = Members { group, block: self.offer.block, addresses, names, own };
                let peer = peers[*host].as_ref().expect("it has answered");
                (*host, engine.call(protocol::join, peer, (self.session, members)))
            })
            .collect();
        let answers = self.answers(calls);
        let joined = self.without_failed(answers);
        (joined.len() == hosts.len()).then_some(group)
    }

    /// Of the members of a group with these hosts.
    fn names(&self, hosts: &[usize]) -> Vec<String> {
        let names = hosts.iter().map(|host| self.hosts[*host].name.clone());
        ["the sender".to_owned()].into_iter().chain(names).collect()
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

    /// Sends all parts to these hosts, a few at a time, and closes the group.
    fn send(
        &mut self,
        group: Group,
        hosts: &[usize],
        outgoing: &mut Outgoing<'_>,
    ) -> Result<(), Stopped> {
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < WINDOW
                && let Some(part) = outgoing.next_part(PART)
            {
                let len = part.len() as u64;
                under_way.push_back((len, group.send(part, &[])?));
            }
            let Some((len, sending)) = under_way.pop_front() else { break };
            self.wait(sending, hosts, || group.progress().bytes)?;
            self.sent += len;
        }
        let bytes = group.progress().bytes;
        self.wait(group.close(), hosts, || bytes)
    }

    /// Waits for a part, and says meanwhile how far all of them are.
    fn wait(
        &mut self,
        mut sending: Completion<Result<(), Failure>>,
        hosts: &[usize],
        bytes: impl Fn() -> u64,
    ) -> Result<(), Stopped> {
        let mut stall = Stall::default();
        loop {
            // Relaxed: a figure for the eye.
            self.progress.done.store(bytes(), Ordering::Relaxed);
            match sending.wait_within(TICK) {
                Ok(sent) => return Ok(sent?),
                Err(unfinished) => sending = unfinished,
            }
            if !self.look(&mut stall, bytes(), hosts).is_empty() {
                return Err(Stopped::Silent);
            }
        }
    }

    /// Takes the host out whose fault it is; whether there is another attempt.
    fn lose(&mut self, hosts: &[usize], why: &hg_multicast::Error) -> bool {
        let why = match why {
            hg_multicast::Error::Failed(failure) => {
                let (at, names) = ((failure.member as usize).checked_sub(1), self.names(hosts));
                if let Some(host) = at.and_then(|at| hosts.get(at)) {
                    self.hosts[*host].fail(&protocol::reason(failure, &names));
                    return true;
                }
                protocol::words(failure, &names)
            }
            why => why.to_string(),
        };
        hosts.iter().for_each(|host| self.hosts[*host].fail(&why));
        false
    }

    fn finish(&mut self, peers: &[Option<Peer>], hosts: &[usize]) {
        let engine = self.multicast.engine().clone();
        let peer = |host: usize| peers[host].as_ref().expect("it has answered");
        let calls: Vec<_> = hosts
            .iter()
            .map(|host| (*host, engine.call(protocol::finish, peer(*host), (self.session,))))
            .collect();
        let answers = self.answers(calls);
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
                Err(error) => {
                    let host = &mut self.hosts[host];
                    host.fail(&why(error, host.is_started()));
                }
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

    fn report(mut self, took: Duration) -> Report {
        // All at a time; each is waited for as it is dropped.
        self.hosts.iter_mut().for_each(Host::release);
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

/// Why a host has not answered as it should, whose receiver this program has started itself or not.
fn why(error: CallError<Trouble>, is_started: bool) -> String {
    match error {
        CallError::Handler(trouble) => trouble.to_string(),
        CallError::PeerGone { reason: GoneReason::Unreachable(why), .. } if !is_started => {
            format!("no receiver is there ({why}): start `{NAME} --receive FOLDER` there")
        }
        CallError::PeerGone { reason: reason @ GoneReason::Unreachable(_), .. } => {
            format!("its receiver has started, but {reason}")
        }
        CallError::PeerGone { reason: reason @ GoneReason::Refused(_), .. } => reason.to_string(),
        CallError::SignatureMismatch(_) => format!("runs another version of {NAME}"),
        error => error.to_string(),
    }
}

/// Why a group could not send all of it.
enum Stopped {
    Failed(hg_multicast::Error),
    /// Hosts that gave no sign of life were given up.
    Silent,
}

impl<E: Into<hg_multicast::Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Wakes who waits for an answer.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
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

/// Between two looks at how far it is.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// As it was before.
    #[hg::rpc(name = "multicast-cp.settle")]
    fn settle(session: Session, same: Vec<u32>) -> Result<(), Trouble>;

    #[test]
    fn a_receiver_of_another_version_is_said_to_be_one() {
        let open = || Multicast::open(hg::builder().setting("routing", "off"), "tcp://127.0.0.1");
        let [older, own] = [open().unwrap(), open().unwrap()];
        older.engine().serve(settle, |_, _| Ok(())).unwrap();
        let peer = own.engine().lookup(older.address()).unwrap();
        let asked = (Session::default(), vec![1], vec![2]);
        let error = own.engine().call(protocol::settle, &peer, asked).wait().unwrap_err();
        assert_eq!(why(error, false), "runs another version of multicast-cp");
    }
}
