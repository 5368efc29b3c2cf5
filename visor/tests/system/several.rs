//! Daemons that own several networks: an application has one address, by which nodes in any of them reach it.

use watchdog::Watchdog;

use crate::{
    common::{Daemon, Network, Process, echo, engine, length, listening},
    networks::is_skipped,
};

fn further(url: &str) -> String {
    format!("[[further-network]]\nurl = \"{url}\"\n")
}

/// Small calls, between which the daemons sleep now and then, and a large one.
fn calls(origin: &hg::Engine, target: &str) {
    let peer = origin.lookup(target).unwrap();
    for number in 0..50 {
        assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
    }
    let large = origin.call(length, &peer, (vec![1; 1_000_000],));
    assert_eq!(large.wait().unwrap(), (1_000_000, 1_000_000));
}

#[test]
fn an_application_is_reached_at_each_address_of_its_daemon_and_at_all_together() {
    let _watchdog = Watchdog::start();
    let far = Daemon::with("far", 0, &further("tcp://127.0.0.1:0"));
    let near = Daemon::start("near", 0);
    let target = listening(&far, "visor://store");
    let (first, second) = far.address.split_once('~').unwrap();
    assert!(first != second && second.starts_with("tcp://"), "{}", far.address);
    assert_eq!(target.address().to_string(), format!("visor://store/0@{}", far.address));
    let (across, inside) = (engine(&near), engine(&far));
    for node in [first, second, &far.address] {
        for origin in [&across, &inside] {
            calls(origin, &format!("visor://store/0@{node}"));
        }
    }
    // A way by each network; what is inside of the node takes none.
    assert_eq!(
        (near.status()["daemons"].clone(), far.status()["daemons"].clone()),
        (2.into(), 2.into())
    );
    let back = listening(&near, "visor://back");
    calls(&inside, &back.address().to_string());
    drop((across, inside, target, back));
    for daemon in [&near, &far] {
        daemon.until("no connection is left", |it| it["connections"] == 0);
    }
}

/// One in both networks serves nodes that are in either, which do not reach each other.
pub(crate) fn serves_both(first: Network, second: Network) {
    first.choose();
    let far = Daemon::with("far", 0, &further(&second.url("far", 0)));
    let in_first = Daemon::start("near", 0);
    second.choose();
    let in_second = Daemon::start("other", 0);
    let mut target = Process::application("serve", &far.name, "visor://store");
    let address = target.hear("address");
    let origins = [engine(&in_first), engine(&in_second)];
    origins.iter().for_each(|origin| calls(origin, &address));
    let caller = engine(&far);
    for daemon in [&in_first, &in_second] {
        let back = listening(daemon, "visor://");
        calls(&caller, &back.address().to_string());
    }
    let apart = listening(&in_second, "visor://apart");
    let peer = origins[0].lookup(apart.address()).unwrap();
    let refused = origins[0].call(echo, &peer, (1,)).wait().unwrap_err().to_string();
    assert!(refused.contains(&in_second.address), "{refused}");
    // Its end is told by either, and who comes after it is found by either.
    let peers = [&origins[0], &origins[1]].map(|origin| origin.lookup(&address).unwrap());
    target.kill();
    for (origin, peer) in origins.iter().zip(&peers) {
        watchdog::until("its end is told", || origin.call(echo, peer, (1,)).wait().is_err());
    }
    let mut target = Process::application("serve", &far.name, "visor://store");
    assert_eq!(target.hear("address"), address);
    origins.iter().for_each(|origin| calls(origin, &address));
    drop((origins, caller, apart));
    target.kill();
    for daemon in [&far, &in_first, &in_second] {
        daemon.until("no connection is left", |it| it["connections"] == 0);
    }
}

#[test]
fn one_address_is_good_for_nodes_that_are_in_either_network() {
    let _watchdog = Watchdog::start();
    if !is_skipped("several") {
        serves_both(Network::Tcp, Network::Ofi);
    }
}

#[test]
fn a_daemon_sleeps_after_calls_by_a_further_network_that_is_polled_until_it_is_armed() {
    let _watchdog = Watchdog::start();
    if is_skipped("sleeps") {
        return;
    }
    let far = Daemon::with("far", 0, &further(&Network::Ofi.url("far", 0)));
    Network::Ofi.choose();
    let near = Daemon::start("near", 0);
    let target = listening(&far, "visor://store");
    let origin = engine(&near);
    calls(&origin, &target.address().to_string());
    for daemon in [&far, &near] {
        watchdog::until("it sleeps", || (0..100).all(|_| daemon.process.is_asleep()));
    }
}

#[test]
fn a_network_that_is_polled_in_steps_goes_first_and_is_refused_behind_another() {
    let _watchdog = Watchdog::start();
    if is_skipped("polled") {
        return;
    }
    serves_both(Network::Polled, Network::Tcp);
    let mut config = hg_visor::Config::over("tcp://127.0.0.1:0");
    config.name = format!("visor-{}-behind", std::process::id());
    let settings = [("sleep".to_owned(), "off".to_owned())].into();
    let url = "ofi+tcp://127.0.0.1".to_owned();
    config.further_networks.push(hg_visor::Further { url, settings });
    let refused = hg_visor::Daemon::open(config).unwrap_err().to_string();
    assert!(refused.contains("name it first"), "{refused}");
}
