//! Processes of a job, imitated by threads of this one, each with a domain of its own; and the transports that tests run over.

#[path = "../../../tests/daemons/daemons.rs"]
mod daemons;
mod meeting;

use hg_invoke::{Fabric, Worker};
use watchdog::Watchdog;

pub(crate) use self::daemons::Daemons;
pub(crate) use self::meeting::{Meeting, Process};

/// Through daemons that are started for the test.
pub(crate) const VISOR: &str = "visor://";

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
    // Each other process is on the other node.
    let daemons = url.starts_with(VISOR).then(|| Daemons::start(2));
    let returned = std::thread::scope(|scope| {
        let opened: Vec<_> = (0..processes)
            .map(|rank| {
                let fabric = fabric.clone().threads(threads);
                let fabric = match &daemons {
                    Some(daemons) => fabric.setting("daemon", daemons.name(rank)),
                    None => fabric,
                };
                scope.spawn(move || fabric.open(&Process(rank, processes, meeting), url).unwrap())
            })
            .collect();
        let workers: Vec<Worker> = opened.into_iter().flat_map(|it| it.join().unwrap()).collect();
        let ended: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || work(worker))).collect();
        ended.into_iter().map(|it| it.join().unwrap()).collect()
    });
    daemons.iter().for_each(|it| drop(it.until_nothing_is_left()));
    returned
}

/// Whether this machine has the transport.
#[expect(clippy::print_stdout, reason = "a skip is said aloud")]
pub(crate) fn is_there(url: &str, test: &str) -> bool {
    if url.starts_with(VISOR) {
        return true;
    }
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
        over_each_transport!(@ visor "visor://" $($test $body)*);
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
