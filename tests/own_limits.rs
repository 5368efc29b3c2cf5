//! A process that has no descriptor left: it says so, and does not blame its peer. One test: it lowers the limit of its
//! own process.

#![cfg(all(feature = "sm", feature = "tcp"))]

use hg::{CallError, GoneReason};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[hg::rpc]
fn nothing();

#[test]
fn a_process_without_descriptors_names_its_own_limit_and_the_next_call_after_it_works() {
    let routed = || hg::builder().setting("routing", "off");
    for url in ["sm://", "tcp://127.0.0.1"] {
        let target = routed().listen(true).open(url).unwrap();
        target.serve(nothing, |_request, ()| Ok(())).unwrap();
        let origin = routed().open(url).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Numbers below the limit that are free are taken, so that the next one is over it.
        let most = 256;
        setrlimit(Resource::RLIMIT_NOFILE, most, hard).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let failure = origin.call(nothing, &peer, ()).wait().unwrap_err();
        drop(taken);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        let CallError::PeerGone { reason: GoneReason::Exhausted(why), .. } = &failure else {
            panic!("{url}: {failure}");
        };
        let start = "open files (RLIMIT_NOFILE) is at its limit of 256; raise it with `ulimit -n`";
        assert!(why.starts_with(start), "{url}: {failure}");
        let said = failure.to_string();
        assert!(said.ends_with("; make room, then look the address up again"), "{said}");
        let peer = origin.lookup(target.address()).unwrap();
        origin.call(nothing, &peer, ()).wait().unwrap();
    }
}
