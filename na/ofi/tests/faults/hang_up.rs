//! A client process that is killed while its requests wait for admission, and one that answers what nobody has asked.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::Instant,
};

use hg_na::{Address, Completion, Context, Error, GoneReason, Message, Op, Peer, QUIET};
use watchdog::{alone, in_time};

use super::{MARK, URL, open, strangers::resident_kib};

const TARGET: &str = "HG_TEST_TARGET";
/// Requests of a client's: fewer than it has credits for.
const REQUESTS: u64 = 40;

fn progress(context: &mut Box<dyn Context>, seen: &mut Vec<Completion>) {
    context.progress(Instant::now(), seen).unwrap();
}

/// Makes progress until something was told, and takes it.
fn until(
    context: &mut Box<dyn Context>,
    seen: &mut Vec<Completion>,
    is_it: impl Fn(&Completion) -> bool,
) -> Completion {
    let start = Instant::now();
    loop {
        progress(context, seen);
        if let Some(at) = seen.iter().position(&is_it) {
            return seen.remove(at);
        }
        in_time!(start, "it did not happen: {seen:?}");
    }
}

fn is_request(it: &Completion) -> bool {
    matches!(it, Completion::Unexpected { .. })
}

fn is_control(it: &Completion) -> bool {
    matches!(it, Completion::Control { .. })
}

fn is_hang_up(it: &Completion) -> bool {
    matches!(it, Completion::HungUp { .. })
}

fn is_gone(it: &Completion) -> bool {
    matches!(it, Completion::Gone { .. })
}

fn is_end(it: &Completion) -> bool {
    matches!(it, Completion::Done(_))
}

/// The role of a client: it says hello; once it is told to, it sends its requests and a control message.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_client_that_sends_when_it_is_told_to() {
    let (Ok(url), Ok(target)) = (env::var(URL), env::var(TARGET)) else { return };
    let domain = open(&url, &[]).unwrap();
    let (mut context, mut seen) = (domain.context(0).unwrap(), Vec::new());
    let to = context.lookup(&Address::new(&target).unwrap()).unwrap();
    context.post(QUIET, Op::SendUnexpected { to, message: Message::copied(b"hello") }).unwrap();
    until(&mut context, &mut seen, is_control);
    for number in 0..REQUESTS {
        let message = Message::copied(&number.to_le_bytes());
        context.post(1, Op::SendUnexpected { to, message }).unwrap();
    }
    context.post(1, Op::SendControl { to, message: Message::copied(b"the last") }).unwrap();
    (0..=REQUESTS).for_each(|_| drop(until(&mut context, &mut seen, is_end)));
    println!("{MARK}done");
    let _ = std::io::stdin().read(&mut [0]);
}

fn client(url: &str, target: &Address) -> (Child, BufReader<ChildStdout>) {
    let role = "hang_up::a_client_that_sends_when_it_is_told_to";
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", role, "--nocapture", "--test-threads", "1"])
        .envs([(URL, url), (TARGET, target.as_str())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let words = BufReader::new(process.stdout.take().unwrap());
    (process, words)
}

/// Admission is closed to all, or to the client alone.
fn a_client_is_killed(url: &str, by_name: bool) {
    let domain = open(url, &[]).unwrap();
    let (mut context, mut seen) = (domain.context(0).unwrap(), Vec::new());
    let (mut process, words) = client(url, context.address());
    let hello = until(&mut context, &mut seen, is_request);
    let Completion::Unexpected { from: peer, .. } = hello else { panic!("{hello:?}") };
    let admit = |context: &mut Box<dyn Context>, open: bool| match by_name {
        true => context.set_admission_of(peer, open),
        false => context.set_admission(open),
    };
    admit(&mut context, false);
    context.post(7, Op::RecvExpected { from: peer, tag: 1 }).unwrap();
    let message = Message::copied(b"go");
    context.post(QUIET, Op::SendControl { to: peer, message }).unwrap();
    // Some providers need both sides' progress for a message to leave.
    let said = std::thread::spawn(move || {
        assert!(words.lines().any(|line| line.unwrap().contains(MARK)), "it says that it is done");
    });
    while !said.is_finished() {
        progress(&mut context, &mut seen);
    }
    said.join().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    let told = until(&mut context, &mut seen, is_hang_up);
    let Completion::HungUp { reason, .. } = told else { panic!("{told:?}") };
    assert_eq!(reason, GoneReason::Exited, "{url}");
    assert!(seen.iter().any(is_control), "{url}: what does not wait for admission comes before");
    let failed = seen
        .iter()
        .any(|it| matches!(it, Completion::Done(done) if done.token == 7 && done.result.is_err()));
    assert!(failed, "{url}: {seen:?}");
    refuses(&mut context, peer);
    (0..100).for_each(|_| progress(&mut context, &mut seen));
    assert!(!seen.iter().any(|it| is_request(it) || is_gone(it)), "{url}: {seen:?}");
    admit(&mut context, true);
    let last = until(&mut context, &mut seen, is_gone);
    assert!(matches!(last, Completion::Gone { reason: GoneReason::Exited, .. }), "{url}: {last:?}");
    let requests = seen.iter().filter_map(|it| match it {
        Completion::Unexpected { message, .. } => Some(message.as_slice().to_vec()),
        _ => None,
    });
    let wanted = (0..REQUESTS).map(|number| number.to_le_bytes().to_vec());
    assert!(requests.eq(wanted), "{url}: {seen:?}");
    assert!(!seen.iter().any(is_hang_up), "{url}: told twice");
}

fn refuses(context: &mut Box<dyn Context>, peer: Peer) {
    let message = Message::copied(b"too late");
    let refused = context.post(8, Op::SendUnexpected { to: peer, message }).unwrap_err().error;
    assert!(matches!(refused, Error::PeerGone(_) | Error::UnknownPeer), "{refused}");
}

#[test]
fn a_killed_client_is_told_at_once_and_its_withheld_requests_when_admission_opens() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        for by_name in [false, true] {
            a_client_is_killed(url, by_name);
        }
    }
}

#[test]
fn answers_that_nobody_waits_for_cost_no_memory_and_stop_nothing() {
    alone(answers_that_nobody_waits_for);
}

fn answers_that_nobody_waits_for() {
    /// Their content together is twenty times what they may cost.
    const ANSWERS: u64 = 20_000;
    const LEN: usize = 4000;
    for (url, settings) in [
        ("ofi+tcp://127.0.0.1", &[][..]),
        ("ofi+tcp://127.0.0.1", &[("messages", "tagged")]),
        ("ofi+shm://", &[]),
        ("ofi+shm://", &[("messages", "tagged")]),
    ] {
        let domain = open(url, settings).unwrap();
        let (mut target, mut sender) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let (mut seen, mut sent) = (Vec::new(), Vec::new());
        let to = sender.lookup(target.address()).unwrap();
        let mut before = 0;
        for tag in 0..ANSWERS {
            let mut op = Op::SendExpected { to, tag, message: vec![1; LEN].into() };
            while let Err(rejected) = sender.post(QUIET, op) {
                assert!(matches!(rejected.error, Error::Again), "{url}: {}", rejected.error);
                op = rejected.op;
                progress(&mut sender, &mut sent);
                progress(&mut target, &mut seen);
            }
            if tag == ANSWERS / 10 {
                before = resident_kib();
            }
        }
        sender.post(1, Op::SendUnexpected { to, message: Message::copied(b"behind") }).unwrap();
        while !seen.iter().any(is_request) {
            progress(&mut sender, &mut sent);
            progress(&mut target, &mut seen);
        }
        let grown = resident_kib().saturating_sub(before);
        assert!(grown < 4096, "{url} {settings:?}: {ANSWERS} answers cost {grown} KiB");
        let is_expected = |it: &Completion| is_end(it) || matches!(it, Completion::Room { .. });
        assert!(seen.len() == 1 && sent.iter().all(is_expected), "{url}: {seen:?} {sent:?}");
    }
}

#[test]
fn whose_requests_take_most_memory_while_they_wait_is_sent_away_and_nobody_else() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let mut target = open(url, &[("max-held-mib", "1")]).unwrap().context(0).unwrap();
        target.set_admission(false);
        let own = || open(url, &[]).unwrap().context(0).unwrap();
        let (mut friend, mut greedy, mut other) = (own(), own(), own());
        let mut seen: [Vec<Completion>; 4] = Default::default();
        // What waits keeps its credits: over short frames 33 of the greedy one's come, and 64 of all are too many.
        for (from, count) in [(&mut friend, 9), (&mut greedy, 60), (&mut other, 24)] {
            let to = from.lookup(target.address()).unwrap();
            for number in 0..count {
                let is_short = count == 9 && number == 0;
                let message = vec![7; if is_short { 9 } else { 16 << 10 }].into();
                from.post(1, Op::SendUnexpected { to, message }).unwrap();
            }
        }
        let start = Instant::now();
        let why = loop {
            in_time!(start, "{url}: {seen:?}");
            let [of_target, of_friend, of_greedy, of_other] = &mut seen;
            progress(&mut target, of_target);
            progress(&mut friend, of_friend);
            progress(&mut greedy, of_greedy);
            progress(&mut other, of_other);
            let gone = of_greedy.iter().find_map(|it| match it {
                Completion::Gone { reason, .. } => Some(reason.to_string()),
                _ => None,
            });
            if let Some(why) = gone {
                break why;
            }
        };
        assert!(why.contains("too much memory"), "{url}: {why}");
        assert!(!seen[1].iter().chain(&seen[3]).any(is_gone), "{url}: nobody else");
        target.set_admission(true);
        while !seen[0]
            .iter()
            .any(|it| matches!(it, Completion::Unexpected { message, .. } if message.len() == 9))
        {
            in_time!(start, "{url}");
            progress(&mut target, &mut seen[0]);
            progress(&mut friend, &mut seen[1]);
        }
    }
}
