//! Processes of a job, imitated by threads of this one, each with a domain of its own; and the transports that tests run over.

mod meeting;

use hg_invoke::{Fabric, Worker};
use watchdog::Watchdog;

pub(crate) use self::meeting::{Meeting, Process};

/// Runs workers of so many processes, each in a thread; what they return, by place.
pub(crate) fn run<T: Send>(
    url: &str,
    (processes, threads): (u32, u8),
    fabric: &Fabric,
    work: impl Fn(Worker) -> T + Sync,
) -> Vec<T> {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    let (meeting, work) = (&meeting, &work);
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..processes)
            .map(|rank| {
                let fabric = fabric.clone().threads(threads);
                scope.spawn(move || fabric.open(&Process(rank, processes, meeting), url).unwrap())
            })
            .collect();
        let workers: Vec<Worker> = opened.into_iter().flat_map(|it| it.join().unwrap()).collect();
        let ended: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || work(worker))).collect();
        ended.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// Whether this machine has the transport.
#[expect(clippy::print_stdout, reason = "a skip is said aloud")]
pub(crate) fn is_there(url: &str, test: &str) -> bool {
    match Fabric::new().open(&Process(0, 1, &Meeting::default()), url) {
        Err(_) if url.starts_with("ofi") => {
            let scheme = url.split(':').next().unwrap();
            println!("SKIPPED: {test}: libfabric offers no {scheme} here");
            false
        }
        opened => opened.map(drop).is_ok(),
    }
}

/// The same tests over each transport: `over_each_transport! { name => body, ... }`, a body takes an address.
macro_rules! over_each_transport {
    ($($test:ident => $body:ident),* $(,)?) => {
        over_each_transport!(@ sm "sm://" $($test $body)*);
        over_each_transport!(@ tcp "tcp://127.0.0.1" $($test $body)*);
        over_each_transport!(@ routed "sm+tcp://127.0.0.1" $($test $body)*);
        over_each_transport!(@ ofi_tcp "ofi+tcp://127.0.0.1" $($test $body)*);
    };
    (@ $name:ident $url:literal $($test:ident $body:ident)*) => {
        mod $name {
            $(#[test]
            fn $test() {
                if super::common::is_there($url, concat!(module_path!(), "::", stringify!($test))) {
                    super::$body($url);
                }
            })*
        }
    };
}
