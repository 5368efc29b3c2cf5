//! What is wrong with a machine, a URL or a peer is said in one clear sentence, and costs nobody else anything.
//!
//! Processes are this test binary again, by the test `a_process_of_its_own`, with a URL in its environment.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "faults/cards.rs"]
mod cards;
#[path = "faults/hang_up.rs"]
mod hang_up;
#[cfg(feature = "key")]
#[path = "faults/keys.rs"]
mod keys;
#[path = "../../tcp/tests/common/log.rs"]
mod log;
#[path = "faults/patience.rs"]
mod patience;
#[path = "faults/providers.rs"]
mod providers;
#[path = "faults/strangers.rs"]
mod strangers;

use std::{
    env,
    os::unix::process::ExitStatusExt as _,
    process::{Command, Output},
    sync::Arc,
    time::Instant,
};

use hg_na::{Address, Completion, Context, Domain, Error, Op, OpenOptions, Plugin as _};
use hg_na_ofi::{OfiPlugin, PATH_VARIABLE};
use nix::sys::resource::{Resource, setrlimit};
use watchdog::in_time;

const URL: &str = "HG_TEST_URL";
/// What begins the line that a process says; the rest of its output is the test harness's.
const MARK: &str = "@ ";

fn open(url: &str, settings: &[(&str, &str)]) -> Result<Arc<dyn Domain>, Error> {
    let mut options = OpenOptions::listening();
    for (name, value) in settings {
        options.settings.insert((*name).to_owned(), (*value).to_owned());
    }
    OfiPlugin.open(&Address::new(url)?, &options)
}

fn sentence(url: &str, settings: &[(&str, &str)]) -> String {
    open(url, settings).map(drop).unwrap_err().to_string()
}

/// Progresses contexts until something holds.
fn until(
    contexts: &mut [&mut Box<dyn Context>],
    mut holds: impl FnMut(&[Vec<Completion>]) -> bool,
) {
    let start = Instant::now();
    let mut seen: Vec<Vec<Completion>> = contexts.iter().map(|_| Vec::new()).collect();
    while !holds(&seen) {
        in_time!(start, "it did not happen: {seen:?}");
        for (context, seen) in contexts.iter_mut().zip(&mut seen) {
            context.progress(Instant::now(), seen).unwrap();
        }
    }
}

/// One message there, and its arrival.
fn greet(from: &mut Box<dyn Context>, to: &mut Box<dyn Context>) {
    let peer = from.lookup(to.address()).unwrap();
    from.post(1, Op::SendUnexpected { to: peer, message: b"hello".to_vec().into() }).unwrap();
    let came = |it: &Completion| matches!(it, Completion::Unexpected { message, .. } if message.as_slice() == b"hello");
    until(&mut [from, to], |seen| seen[1].iter().any(came));
}

#[test]
fn who_comes_and_who_goes_is_noticed_while_another_peer_leaves_no_empty_round() {
    /// Messages after which nobody would be noticed any more.
    const ENOUGH: u32 = 200_000;
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let open = || open(url, &[]).and_then(|domain| domain.context(0)).unwrap();
        let (mut target, mut busy, mut mortal) = (open(), open(), open());
        greet(&mut mortal, &mut target);
        greet(&mut busy, &mut target);
        let address = target.address().clone();
        let to = busy.lookup(&address).unwrap();
        let (mut done, mut others) = (Vec::new(), Vec::new());
        let mut kept_busy = |meanwhile: &mut dyn FnMut(), is_over: &dyn Fn(&Completion) -> bool| {
            for _ in 0..ENOUGH {
                let message = b"more".to_vec().into();
                busy.post(1, Op::SendUnexpected { to, message }).unwrap();
                // Until it has come: some rounds, never many.
                while !done.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
                    busy.progress(Instant::now(), &mut others).unwrap();
                    target.progress(Instant::now(), &mut done).unwrap();
                    meanwhile();
                }
                others.clear();
                if done.iter().any(is_over) {
                    return true;
                }
                done.clear();
            }
            false
        };
        let gone = |it: &Completion| matches!(it, Completion::Gone { .. });
        let mut ending = Some(mortal);
        assert!(kept_busy(&mut || drop(ending.take()), &gone), "{url}: an end");
        let (mut stranger, mut ignored) = (open(), Vec::new());
        let there = stranger.lookup(&address).unwrap();
        let message = b"hello".to_vec().into();
        stranger.post(1, Op::SendUnexpected { to: there, message }).unwrap();
        let came = |it: &Completion| matches!(it, Completion::Unexpected { message, .. } if message.as_slice() == b"hello");
        let mut knock = || {
            stranger.progress(Instant::now(), &mut ignored).unwrap();
        };
        assert!(kept_busy(&mut knock, &came), "{url}: somebody new");
    }
}

/// This program again, with a URL to open; `environment` besides.
fn process(url: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_process_of_its_own", "--nocapture", "--test-threads", "1"])
        .env(URL, url)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// What it said.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once(MARK).map(|(_, rest)| rest.to_owned()));
    line.unwrap_or_else(|| panic!("it said nothing: {text}"))
}

/// Opens its URL, talks to itself and to nobody, and says how that went.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_of_its_own() {
    let Ok(url) = env::var(URL) else { return };
    let domain = match open(&url, &[]) {
        Ok(domain) => domain,
        Err(error) => return println!("{MARK}{error}"),
    };
    let (mut one, mut other) = (domain.context(0).unwrap(), domain.context(1).unwrap());
    greet(&mut one, &mut other);
    // Somebody who leaves in the middle, and nobody.
    let gone = other.address().clone();
    let peer = one.lookup(&gone).unwrap();
    one.post(2, Op::RecvExpected { from: peer, tag: 9 }).unwrap();
    drop(other);
    let is_gone = |it: &Completion| matches!(it, Completion::Gone { .. });
    until(&mut [&mut one], |seen| seen[0].iter().any(is_gone));
    let nobody = one.lookup(&gone).unwrap();
    one.post(3, Op::SendUnexpected { to: nobody, message: vec![0; 9].into() }).unwrap();
    until(&mut [&mut one], |seen| seen[0].iter().any(is_gone));
    println!("{MARK}fine");
}

/// Set in a process that aborts once it has opened libfabric.
const ABORTS: &str = "HG_TEST_ABORTS";

#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_that_aborts() {
    if env::var_os(ABORTS).is_none() {
        return;
    }
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let _domain = open("ofi+tcp://127.0.0.1", &[]).unwrap();
    let brings = std::fs::read_to_string("/proc/self/maps").unwrap().contains("/libpsm2.so");
    println!("{MARK}{brings}");
    std::process::abort();
}

#[test]
#[expect(clippy::print_stdout, reason = "says what is skipped")]
fn a_process_that_aborts_leaves_nothing_in_its_folder() {
    let folder = env::temp_dir().join(format!("hg-ofi-aborts-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_process_that_aborts", "--nocapture"])
        .env(ABORTS, "yes")
        .current_dir(&folder)
        .output()
        .unwrap();
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.signal(), Some(nix::libc::SIGABRT));
    assert!(left.is_empty(), "{left:?}");
    if said(&output) == "false" {
        println!(
            "SKIPPED: a_process_that_aborts_leaves_nothing_in_its_folder: libfabric brings no libpsm2 here"
        );
    }
}

#[test]
fn without_libfabric_a_program_starts_and_is_told_what_to_install() {
    let output = process("ofi+tcp://127.0.0.1", &[(PATH_VARIABLE, "/nowhere/libfabric.so.1")]);
    let sentence = said(&output);
    assert!(sentence.contains("HG_LIBFABRIC names /nowhere/libfabric.so.1"), "{sentence}");
    assert!(sentence.contains("apt-get install libfabric1"), "{sentence}");
    assert!(output.status.success());
}

#[test]
fn another_library_under_its_name_is_told_apart() {
    let sentence = said(&process("ofi+shm://", &[(PATH_VARIABLE, "libc.so.6")]));
    assert!(sentence.contains("libc.so.6 is no libfabric"), "{sentence}");
}

#[test]
#[expect(clippy::print_stdout, reason = "says what is skipped")]
fn a_dev_shm_without_room_is_named() {
    const SMALL: &str = "mount -t tmpfs -o size=64k none /dev/shm || exit 77; exec \"$0\" --exact a_process_of_its_own --nocapture";
    let mut command = Command::new("unshare");
    let test = env::current_exe().unwrap();
    command.args(["--mount", "sh", "-c", SMALL]).arg(test).env(URL, "ofi+shm://");
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        other => {
            println!(
                "SKIPPED: a_dev_shm_without_room_is_named: no tmpfs can be mounted here: {other:?}"
            );
            return;
        }
    };
    let said = said(&output);
    assert!(said.contains("room in /dev/shm"), "{said}");
}

#[test]
fn an_old_libfabric_is_refused_with_both_versions() {
    let folder = env::temp_dir().join(format!("hg-old-libfabric-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("old.c"), folder.join("libfabric.so.1"));
    std::fs::write(&source, "unsigned fi_version(void) { return 1u << 16 | 11; }\n").unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success(), "the linker that Rust needs compiles C, too");
    let path = library.to_str().unwrap().to_owned();
    let sentence = said(&process("ofi+shm://", &[(PATH_VARIABLE, &path)]));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(sentence.contains("libfabric 1.11 is too old: 1.17 or later is needed"), "{sentence}");
}

#[test]
fn a_provider_that_is_not_there_is_named_with_what_it_needs() {
    let sentence = sentence("ofi+cxi://", &[]);
    assert!(sentence.contains("no provider `cxi` that works on this machine"), "{sentence}");
    assert!(
        sentence.contains("Slingshot card") && sentence.contains("hydrargyrum info"),
        "{sentence}"
    );
    let unknown = self::sentence("ofi+pigeon://", &[]);
    assert!(unknown.contains("ofi+PROVIDER://"), "{unknown}");
}

#[test]
fn an_interface_that_does_not_exist_is_named_with_those_that_do() {
    for (url, settings, named) in [
        ("ofi+tcp://", [("domain", "ib7")], "setting `domain`: nothing that tcp offers here fits"),
        ("ofi+tcp://", [("subnet", "203.0.113.0/24")], "setting `subnet`: nothing"),
        (
            "ofi+tcp://203.0.113.7",
            [("retry-bound-ms", "9")],
            "no interface that tcp can use has the address 203.0.113.7",
        ),
    ] {
        let sentence = sentence(url, &settings);
        assert!(sentence.contains(named), "{sentence}");
        assert!(sentence.contains("lo 127.0.0.1"), "{sentence}");
    }
}

#[test]
fn interface_and_subnet_choose_among_offers() {
    for settings in [[("domain", "lo")], [("subnet", "127.0.0.0/8")]] {
        let address = open("ofi+tcp://", &settings).unwrap().context(0).unwrap().address().clone();
        assert!(
            address.rest().starts_with("127.0.0.1:") || address.rest().starts_with("[::1]:"),
            "{address}"
        );
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "says what is skipped")]
fn who_listens_beyond_this_machine_without_a_key_says_so_once() {
    for (url, is_beyond) in
        [("ofi+tcp://", true), ("ofi+tcp://127.0.0.1", false), ("ofi+shm://", false)]
    {
        for listens in [true, false] {
            let mut options = OpenOptions::listening();
            options.listen = listens;
            let log = log::Log::default();
            let address = tracing::subscriber::with_default(log.clone(), || {
                let domain = OfiPlugin.open(&Address::new(url).unwrap(), &options).unwrap();
                let contexts = [0, 1].map(|id| domain.context(id).unwrap());
                contexts[0].address().clone()
            });
            let is_loopback = ["127.", "[::1]"].iter().any(|it| address.rest().starts_with(it));
            if is_beyond && is_loopback {
                println!(
                    "SKIPPED: who_listens_beyond_this_machine_without_a_key_says_so_once: no interface but the loopback"
                );
                continue;
            }
            let times = log.text().matches("whoever reaches this address").count();
            assert_eq!(times, usize::from(is_beyond && listens), "{address}: {}", log.text());
        }
    }
}

#[test]
fn a_place_in_use_is_named() {
    let first = open("ofi+tcp://127.0.0.1", &[]).unwrap();
    let context = first.context(0).unwrap();
    let address = context.address().clone();
    for url in [address.as_str(), "ofi+shm://faults-in-use"] {
        let _holder = if url.contains("shm") { Some(open(url, &[]).unwrap()) } else { None };
        let refused = open(url, &[]).map(drop);
        assert!(
            matches!(&refused, Err(Error::AddressInUse(in_use)) if in_use.as_str().starts_with(url)),
            "{refused:?}"
        );
    }
}

#[test]
fn sides_that_use_different_messages_are_told_so() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let (tagged, usual) = (open(url, &[("messages", "tagged")]), open(url, &[]));
        let mut target = tagged.unwrap().context(0).unwrap();
        let mut origin = usual.unwrap().context(0).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        origin.post(1, Op::SendUnexpected { to: peer, message: vec![0; 9].into() }).unwrap();
        let is_told = |it: &Completion| match it {
            Completion::Gone { reason, .. } => reason.to_string().contains("with tagged messages"),
            _ => false,
        };
        until(&mut [&mut origin, &mut target], |seen| seen[0].iter().any(is_told));
    }
}

#[test]
fn nothing_is_written_to_stderr_unless_logging_is_on() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://", "ofi+cxi://", "ofi+verbs://"] {
        let output = process(url, &[]);
        let word = said(&output);
        assert!(word == "fine" || word.contains("no provider"), "{url}: {word}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{url}");
    }
}
