//! What libfabric does not take (`FI_EAGAIN`) waits in bounded queues, without spinning, until a deadline; nobody else
//! waits with it.

use std::{
    env,
    io::{BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context, Domain, Error, Op, Peer};
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        signal::{Signal, kill},
        time::TimeValLike as _,
    },
    unistd::Pid,
};
use watchdog::in_time;

use super::{MARK, URL, open};

/// Milliseconds after which a peer to which nothing can be sent is given up.
const BOUND_MS: u64 = 1500;
/// Messages that one peer may be sent before it takes any: those that wait, and some on their way.
const QUEUED_MAX: usize = 1200;
const SERVES: &str = "HG_TEST_SERVES";

trait Line: Read + Write + Send {}
impl<T: Read + Write + Send> Line for T {}

/// Somebody who greets well, answers every ping, and whose endpoint takes nothing: behind a firewall, or never there.
fn deaf(url: &str, number: u32) -> Address {
    let (listener, address, name): (Box<dyn FnOnce() -> Box<dyn Line> + Send>, _, _) =
        if url.starts_with("ofi+shm") {
            let place = format!("deaf-{}-{number}/0", std::process::id());
            let name = format!("hydrargyrum-ofi/{place}");
            let socket = SocketAddr::from_abstract_name(name).unwrap();
            let listener = UnixListener::bind_addr(&socket).unwrap();
            let accept = move || Box::new(listener.accept().unwrap().0) as Box<dyn Line>;
            (Box::new(accept), format!("ofi+shm://{place}"), b"fi_shm://4000001:0\0".to_vec())
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            // The kernel accepts what it sends; nobody reads it.
            let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
            let [high, low] = deaf.local_addr().unwrap().port().to_be_bytes();
            let name = [&2u16.to_ne_bytes()[..], &[high, low, 127, 0, 0, 1], &[0; 8]].concat();
            let address = format!("ofi+tcp://{}", listener.local_addr().unwrap());
            let accept = move || {
                std::mem::forget(deaf);
                Box::new(listener.accept().unwrap().0) as Box<dyn Line>
            };
            (Box::new(accept), address, name)
        };
    let provider = url.split(':').next().unwrap().strip_prefix("ofi+").unwrap().to_owned();
    thread::spawn(move || {
        let mut line = listener();
        let _hello = record(line.as_mut());
        line.write_all(&welcome(&provider, &name)).unwrap();
        while let Some(kind) = record(line.as_mut()) {
            if kind == PING {
                let _ = line.write_all(&[1, 0, 0, 0, PONG]);
            }
        }
    });
    Address::new(&address).unwrap()
}

const PING: u8 = 5;
const PONG: u8 = 6;

/// Reads a record, and says of what kind it is.
fn record(line: &mut dyn Line) -> Option<u8> {
    let mut len = [0; 4];
    line.read_exact(&mut len).ok()?;
    let mut record = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap()];
    line.read_exact(&mut record).ok()?;
    record.first().copied()
}

/// As the layout in `wire` says.
fn welcome(provider: &str, name: &[u8]) -> Vec<u8> {
    let mut record = vec![2];
    record.extend(b"hg-ofi\x00\x04");
    record.extend(3u32.to_le_bytes());
    record.extend(7u64.to_le_bytes());
    record.extend(4096u32.to_le_bytes());
    record.extend(0u32.to_le_bytes());
    for text in [provider.as_bytes(), name] {
        record.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        record.extend(text);
    }
    [&u32::try_from(record.len()).unwrap().to_le_bytes()[..], &record].concat()
}

fn message(to: Peer) -> Op {
    Op::SendUnexpected { to, message: vec![1; 3000].into() }
}

/// Posts until the queue is full: how many.
fn fill(context: &mut Box<dyn Context>, peer: Peer, done: &mut Vec<Completion>) -> usize {
    let mut posted = 0;
    loop {
        match context.post(100, message(peer)) {
            Ok(_) => posted += 1,
            Err(rejected) => {
                assert!(matches!(rejected.error, Error::Again), "{}", rejected.error);
                return posted;
            }
        }
        assert!(posted <= QUEUED_MAX, "a queue without a bound");
        context.progress(Instant::now(), done).unwrap();
    }
}

/// What this thread has computed.
fn processor() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap())
}

/// Progresses and sleeps, as whoever waits does, until something holds.
fn wait_until(
    context: &mut Box<dyn Context>,
    done: &mut Vec<Completion>,
    mut holds: impl FnMut(&[Completion]) -> bool,
) {
    let start = Instant::now();
    while !holds(done) {
        in_time!(start, "it did not happen: {} completions", done.len());
        context.progress(Instant::now(), done).unwrap();
        if context.may_sleep() {
            let most = Duration::from_millis(50);
            let next = context.next_deadline();
            let time = next.map_or(most, |it| it.saturating_duration_since(Instant::now()));
            context.waiter().wait(Some(time.min(most))).unwrap();
        }
    }
}

/// Whether a thread that waits is to sleep: the provider has something to wait on.
fn sleeps(domain: &Arc<dyn Domain>) -> bool {
    domain.caps().sleep != hg_na::Sleep::Poll
}

/// A message of the first one's to the second, and one back. What else the first one is told is kept.
fn exchange(
    context: &mut Box<dyn Context>,
    friend: &mut Box<dyn Context>,
    done: &mut Vec<Completion>,
) {
    let start = Instant::now();
    let to = context.lookup(friend.address()).unwrap();
    context.post(8, message(to)).unwrap();
    let (mut theirs, mut is_answered) = (Vec::new(), false);
    let came = |it: &Completion| matches!(it, Completion::Unexpected { .. });
    while !done.iter().any(came) {
        in_time!(start, "others are not served");
        context.progress(Instant::now(), done).unwrap();
        friend.progress(Instant::now(), &mut theirs).unwrap();
        for it in theirs.drain(..) {
            if let (Completion::Unexpected { from, .. }, false) = (it, is_answered) {
                friend.post(9, message(from)).unwrap();
                is_answered = true;
            }
        }
    }
    done.retain(|it| !came(it));
}

fn is_gone(it: &Completion) -> bool {
    matches!(it, Completion::Gone { .. })
}

#[test]
fn who_can_only_be_polled_sleeps_in_steps_that_grow_and_hears_what_comes() {
    /// Those that grow, and those of 4 ms in a second, twice as many as there should be.
    const STEPS: u32 = 2 * (192 + 250);
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let domain = open(url, &[("sleep", "off")]).unwrap();
        assert!(matches!(domain.caps().sleep, hg_na::Sleep::Steps(_)));
        let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let mut done = Vec::new();
        exchange(&mut context, &mut friend, &mut done);
        let (start, waiter, mut waits) = (Instant::now(), context.waiter(), 0);
        while start.elapsed() < Duration::from_secs(1) {
            context.progress(Instant::now(), &mut done).unwrap();
            if context.may_sleep() {
                waiter.wait(None).unwrap();
                waits += 1;
            }
        }
        assert!((1..STEPS).contains(&waits), "{url}: {waits} looks of an idle context");
        exchange(&mut context, &mut friend, &mut done);
    }
}

#[test]
fn what_is_never_taken_ends_at_its_deadline_by_name_without_spinning() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let domain = open(url, &[("retry-bound-ms", &BOUND_MS.to_string())]).unwrap();
        let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let place = deaf(url, 0);
        let peer = context.lookup(&place).unwrap();
        let (begin, before) = (Instant::now(), processor());
        let mut done = Vec::new();
        let posted = fill(&mut context, peer, &mut done);
        // Others are served meanwhile. Not over shm (1.17): it takes the next peer's memory for that of one whose own
        // is not there; the test below has a real one.
        if url.starts_with("ofi+tcp") {
            exchange(&mut context, &mut friend, &mut done);
        }
        wait_until(&mut context, &mut done, |done| done.iter().any(is_gone));
        let (lasted, used) = (begin.elapsed(), processor() - before);
        assert!(lasted >= Duration::from_millis(BOUND_MS), "{url}: given up after {lasted:?}");
        assert!(!sleeps(&domain) || used < lasted / 4, "{url}: {used:?} of {lasted:?} computed");
        // Each ends once, with the name of what has happened.
        let error = |it: &Completion| match it {
            Completion::Done(done) if done.token == 100 => {
                Some(done.result.as_ref().unwrap_err().error.to_string())
            }
            _ => None,
        };
        let errors: Vec<String> = done.iter().filter_map(error).collect();
        assert_eq!(errors.len(), posted, "{url}");
        for error in errors {
            assert!(error.contains("FI_ETIMEDOUT"), "{url}: {error}");
        }
        // What comes next works: with others, and with the same place.
        exchange(&mut context, &mut friend, &mut done);
        let again = context.lookup(&deaf(url, 1)).unwrap();
        assert_ne!(again, peer);
        context.post(7, message(again)).unwrap();
    }
}

/// A process that serves, until its input ends.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_that_serves() {
    let (Ok(url), true) = (env::var(URL), env::var(SERVES).is_ok()) else { return };
    let domain = open(&url, &[]).unwrap();
    let mut context = domain.context(0).unwrap();
    println!("{MARK}{}", context.address());
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        wait_until(&mut context, &mut Vec::new(), |done| !done.is_empty());
    }
}

fn server(url: &str) -> (Child, Address) {
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", "patience::a_process_that_serves", "--nocapture", "--test-threads", "1"])
        .env(URL, url)
        .env(SERVES, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned())).unwrap();
    (process, Address::new(&address).unwrap())
}

/// Stops a process; it stands still when this returns, and takes nothing more.
fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).unwrap();
    let is_stopped = |status: &str| status.lines().any(|line| line.starts_with("State:\tT"));
    while !is_stopped(&std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap()) {
        thread::yield_now();
    }
}

#[test]
fn a_stopped_peer_costs_bounded_memory_and_little_time_and_takes_everything_when_it_goes_on() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let (mut process, address) = server(url);
        let pid = Pid::from_raw(process.id().try_into().unwrap());
        let domain = open(url, &[("retry-bound-ms", "100")]).unwrap();
        let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let peer = context.lookup(&address).unwrap();
        let (mut done, sent) = (
            Vec::new(),
            |it: &Completion| matches!(it, Completion::Done(done) if done.token == 100 && done.result.is_ok()),
        );
        context.post(100, message(peer)).unwrap();
        wait_until(&mut context, &mut done, |done| done.iter().any(sent));
        stop(pid);
        let posted = 1 + fill(&mut context, peer, &mut done);
        let (begin, before) = (Instant::now(), processor());
        wait_until(&mut context, &mut done, |_| begin.elapsed() > Duration::from_millis(400));
        let (lasted, used) = (begin.elapsed(), processor() - before);
        assert!(!sleeps(&domain) || used < lasted / 4, "{url}: {used:?} of {lasted:?} computed");
        exchange(&mut context, &mut friend, &mut done);
        // It is not taken for dead: it answers no ping, and its kernel says that it lives.
        assert!(!done.iter().any(is_gone), "{url}");
        kill(pid, Signal::SIGCONT).unwrap();
        let all = |done: &[Completion]| done.iter().filter(|it| sent(it)).count() == posted;
        wait_until(&mut context, &mut done, all);
        assert!(!done.iter().any(is_gone), "{url}");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
