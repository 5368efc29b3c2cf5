//! Processes that open their workers otherwise than others are told what differs, before anybody calls.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(unused_macros, reason = "shared with other tests, which run over each transport")]
#[expect(dead_code, reason = "likewise")]
mod common;

use common::{Meeting, Process};
use hg_invoke::{Error, Fabric, Limits, rpc};
use watchdog::Watchdog;

#[rpc(crate = hg_invoke)]
fn extra() {}

mod first {
    #[hg_invoke::rpc(crate = hg_invoke, name = "same")]
    pub(super) fn same(_number: u32) {}
}

mod second {
    #[hg_invoke::rpc(crate = hg_invoke, name = "same")]
    pub(super) fn same(_text: &str) {}
}

/// What each of two processes is told.
fn opened(each: [(Fabric, &str); 2]) -> [String; 2] {
    let _watchdog = Watchdog::start();
    let meeting = &Meeting::default();
    std::thread::scope(|scope| {
        let mut rank = 0;
        let all = each.map(|(fabric, url)| {
            let process = Process(rank, 2, meeting);
            rank += 1;
            scope.spawn(move || match fabric.open(&process, url) {
                Err(Error::Setup(why)) => why,
                other => panic!("{other:?}"),
            })
        });
        all.map(|it| it.join().unwrap())
    })
}

#[test]
fn transports_that_differ_are_named() {
    let [first, second] = opened([(Fabric::new(), "sm://"), (Fabric::new(), "tcp://127.0.0.1")]);
    let is = "the transport is to be the same everywhere: it is";
    assert_eq!(first, format!("{is} tcp:// in process 1, and sm:// in process 0"));
    assert_eq!(second, format!("{is} sm:// in process 0, and tcp:// in process 1"));
}

#[test]
fn bounds_that_differ_are_named() {
    let differing = [
        ("`Limits::window`", Fabric::new().limits(Limits::default().window(1 << 20))),
        ("`Limits::block`", Fabric::new().limits(Limits::default().block(1 << 10))),
        ("`Fabric::queue_max`", Fabric::new().queue_max(1 << 10)),
        ("`Fabric::buffer_max`", Fabric::new().buffer_max(1 << 10)),
    ];
    for (what, fabric) in differing {
        for said in opened([(fabric, "sm://"), (Fabric::new(), "sm://")]) {
            assert!(
                said.contains(what) && said.contains("process 0") && said.contains("process 1"),
                "{said}"
            );
        }
    }
    for said in opened([(Fabric::new().threads(3), "sm://"), (Fabric::new(), "sm://")]) {
        assert!(said.contains("`Fabric::threads`") && said.contains("3 in process 0"), "{said}");
    }
    for said in opened([(Fabric::new().services(2), "sm://"), (Fabric::new(), "sm://")]) {
        assert!(said.contains("`Fabric::services`") && said.contains("2 in process 0"), "{said}");
    }
}

#[test]
fn functions_that_differ_are_named() {
    let with = |fabric: Fabric| (fabric, "sm://");
    let [first, second] =
        opened([with(Fabric::new().register(extra).unwrap()), with(Fabric::new())]);
    assert_eq!(first, "process 1 has not registered: `differing::extra`");
    assert!(second.starts_with("process 0 has registered more functions, 1: "), "{second}");
    let same = Fabric::new().register(first::same).unwrap();
    let other = Fabric::new().register(second::same).unwrap();
    for said in opened([with(same), with(other)]) {
        assert!(
            said.ends_with("has registered with other arguments, or another result: `same`"),
            "{said}"
        );
    }
}

#[test]
fn bounds_that_may_not_be_are_named_by_all() {
    let bad = [
        ("`Limits::block` is 10 bytes: at least 64", Limits::default().block(10)),
        ("`Limits::window` is 100 bytes: at least 8224", Limits::default().window(100)),
        (
            "`Limits::window` is 4000000000 bytes: at most 1073741824",
            Limits::default().window(4_000_000_000),
        ),
        (
            "`Limits::widest` is 4000000000 bytes: at most 1073741824",
            Limits::default().widest(4_000_000_000),
        ),
    ];
    for (why, limits) in bad {
        let [first, second] =
            opened([(Fabric::new().limits(limits), "sm://"), (Fabric::new(), "sm://")]);
        assert_eq!(first, why);
        assert_eq!(second, format!("process 0 cannot open its workers: {why}"));
    }
}

#[cfg(not(feature = "verbs"))]
#[test]
fn a_transport_that_a_feature_would_bring_is_told_with_its_name() {
    let said = opened([(Fabric::new(), "verbs://"), (Fabric::new(), "sm://")]);
    for said in said {
        assert!(said.contains("`verbs://`: the feature `verbs` of"), "{said}");
    }
}

/// One process fails before it can tell its addresses. The others were not to wait for those.
#[test]
fn a_process_that_cannot_be_opened_is_named_by_all_with_its_reason() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp://{}", taken.local_addr().unwrap());
    let [first, second] =
        opened([(Fabric::new(), taken.as_str()), (Fabric::new(), "tcp://127.0.0.1")]);
    assert!(first.starts_with(&taken) && first.contains("in use"), "{first}");
    assert!(first.contains("one process of a machine"), "{first}");
    assert_eq!(second, format!("process 0 cannot open its workers: {first}"));
}

/// Whoever comes second finds it in use.
#[test]
fn a_name_that_all_processes_of_a_machine_are_to_have_fails_everywhere() {
    let name = format!("sm://{}-of-all", std::process::id());
    let mut said = opened([(Fabric::new(), name.as_str()), (Fabric::new(), name.as_str())]);
    said.sort_by_key(|it| it.starts_with("process"));
    let [own, other] = said;
    assert!(own.starts_with(&name) && own.contains("in use"), "{own}");
    assert!(other.starts_with("process ") && other.ends_with(&own), "{other}");
}
