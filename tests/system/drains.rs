//! A server that drains before it is started again, under load: no call is left in doubt, and each runs once.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use hg::{DrainError, Engine, Error};
use nix::sys::signal::Signal;

use crate::{
    common::{
        Child, Watchdog,
        child::{next_command, say},
        until,
    },
    roles::Settings,
    transports::{open_over, urls},
};

const RESTARTS: usize = 20;
/// Calls that are served between two of them.
const SERVED_MIN: usize = 100;

/// Who has called which number, in any of the server's lives; calls that came a second time.
static BEGUN: LazyLock<Mutex<HashSet<(u64, u64)>>> = LazyLock::new(Mutex::default);
static SERVED: AtomicUsize = AtomicUsize::new(0);
static TWICE: AtomicUsize = AtomicUsize::new(0);

/// Answers with so many bytes.
#[hg::rpc]
fn once(caller: u64, number: u64, len: u64) -> Vec<u8> {
    let is_new = BEGUN.lock().unwrap().insert((caller, number));
    TWICE.fetch_add(usize::from(!is_new), Ordering::SeqCst);
    SERVED.fetch_add(1, Ordering::SeqCst);
    vec![7; usize::try_from(len).expect("some bytes")]
}

/// Calls `batch` numbers at a time, takes its answers of `len` bytes after `pause-ms`, and makes those again that were certainly
/// not started. Said to end, it says how many were answered, how many of them at a later try, and what was in doubt.
pub(crate) fn patient(settings: &Settings) {
    let engine = settings.open(false).expect("this process can open an engine");
    let over = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        let caller = scope.spawn(|| call_on(&engine, settings, &over));
        let _end = next_command();
        over.store(true, Ordering::SeqCst);
        caller.join().expect("it does not panic")
    });
    say(&said);
}

fn call_on(engine: &Engine, settings: &Settings, over: &AtomicBool) -> String {
    let number = |name| settings.number(name).expect("a number");
    let (me, len, batch) = (number("me"), number("len"), number("batch"));
    let pause = Duration::from_millis(number("pause-ms"));
    let (mut next, mut answered, mut again, mut in_doubt) = (0, 0, 0, None);
    let mut waiting = BTreeSet::new();
    while !over.load(Ordering::SeqCst) {
        let peer = engine.lookup(settings.target()).expect("an address");
        while waiting.len() < usize::try_from(batch).expect("a few") {
            waiting.insert(next);
            next += 1;
        }
        let calls: Vec<_> = waiting
            .iter()
            .map(|number| (*number, engine.call(once, &peer, (me, *number, len))))
            .collect();
        // A reader that is slow, and takes nothing meanwhile.
        thread::sleep(pause);
        for (number, call) in calls {
            match call.wait() {
                Ok(_) => {
                    answered += 1;
                    waiting.remove(&number);
                }
                Err(error) if error.is_retryable() => again += 1,
                Err(error) => {
                    waiting.remove(&number);
                    in_doubt.get_or_insert(format!("{error:?}"));
                }
            }
        }
    }
    let in_doubt = in_doubt.as_deref().unwrap_or("nothing");
    format!("{answered} answered, {again} at a later try, in doubt: {in_doubt}")
}

/// At an address that the one before may still be leaving.
fn open(url: &str) -> Engine {
    loop {
        let serving = hg::builder().register(once).unwrap();
        match open_over(serving.listen(true), url) {
            Ok(engine) => return engine,
            Err(Error::AddressInUse(_)) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Drains while one client is stopped, and goes on.
fn drain(target: &Engine, slow: &Child) {
    slow.stop();
    thread::scope(|scope| {
        let drained = scope.spawn(|| target.drain(Duration::from_secs(60)).wait());
        slow.signal(Signal::SIGCONT);
        drained.join().unwrap().unwrap();
    });
}

#[test]
fn no_call_is_in_doubt_and_none_runs_twice_when_a_server_drains_before_it_is_restarted() {
    let _watchdog = Watchdog::start();
    // The address stays the same: where it is a name, or of a socket that is not routed.
    for (at, url) in urls().filter(|url| !url.starts_with("tcp")).enumerate() {
        let (transport, host) = url.split_once("://").unwrap();
        let named = format!("{transport}://drains-{}-{at}", std::process::id());
        let first = if host.is_empty() { named } else { url.to_owned() };
        let mut target = open(&first);
        let address = target.address().as_str().to_owned();
        let prefix =
            transport.split_once('+').map_or(String::new(), |(word, _)| format!("{word}+"));
        let place = if host.is_empty() { first } else { format!("{prefix}{address}") };
        let start = |me: usize, rest: &str| {
            let me = 10 * at + me;
            Child::start("patient", &format!("me={me} to={address} url={url} {rest}"))
        };
        let mut clients = vec![
            start(0, "len=60000 batch=64 pause-ms=5 progress=own"),
            start(1, "len=8 batch=1 pause-ms=0"),
            start(2, "len=8 batch=100 pause-ms=0 wait=block"),
        ];
        for _ in 0..RESTARTS {
            let before = SERVED.load(Ordering::SeqCst);
            until(|| SERVED.load(Ordering::SeqCst) >= before + SERVED_MIN);
            drain(&target, &clients[0]);
            target.close();
            target = open(&place);
        }
        for client in &mut clients {
            let said = client.ask("end");
            assert!(
                said.ends_with("in doubt: nothing") && !said.starts_with("0 "),
                "{url}: {said}"
            );
        }
        assert_eq!(TWICE.load(Ordering::SeqCst), 0, "{url}: calls that were not started have run");
    }
}

#[test]
fn a_client_that_takes_no_answers_holds_a_drain_until_its_deadline_and_no_longer() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let target = open(url);
        let arguments = format!("me=900 to={} url={url} len=60000 batch=400", target.address());
        let client = Child::start("patient", &format!("{arguments} pause-ms=0 progress=own"));
        let before = SERVED.load(Ordering::SeqCst);
        until(|| SERVED.load(Ordering::SeqCst) > before);
        client.stop();
        // More answers than any transport holds for it were asked for, or all that were have left.
        let drained = target.drain(Duration::from_millis(50)).wait();
        let is_late = matches!(drained, Err(DrainError::OutOfTime));
        assert!(drained.is_ok() || is_late, "{url}: {drained:?}");
        drop(client);
        target.drain(Duration::from_secs(60)).wait().unwrap();
    }
}
