//! The same over every network that a daemon opens: calls, bulk data, and whoever is killed.

#![expect(clippy::print_stdout, reason = "a test that cannot be run says so")]

use hg_na::Error;
use hg_visor::Config;
use watchdog::Watchdog;

use crate::{calls_and_bulk_data, common::Network, deaths};

/// Applications that are killed over each.
const KILLS: usize = 6;

/// Whether libfabric is not here: then a test is skipped, aloud.
pub(crate) fn is_skipped(test: &str) -> bool {
    let mut config = Config::over("ofi+tcp://127.0.0.1");
    config.name = format!("visor-{}-{test}", std::process::id());
    let is_missing = matches!(hg_visor::Daemon::open(config), Err(Error::Missing { .. }));
    if is_missing {
        println!("SKIPPED: {test}: libfabric offers no ofi+tcp here");
    }
    is_missing
}

macro_rules! over {
    ($module:ident, $network:expr, $is_skipped:expr) => {
        mod $module {
            use super::*;

            fn over(test: &str, runs: impl FnOnce()) {
                let _watchdog = Watchdog::start();
                if !$is_skipped(test) {
                    $network.choose();
                    runs();
                }
            }

            #[test]
            fn calls_and_bulk_data_go_through_two_daemons_unchanged() {
                over("calls", calls_and_bulk_data);
            }

            #[test]
            fn applications_killed_under_load_leave_nothing_and_nobody_else_sees_an_error() {
                over("applications", || deaths::kill_applications(KILLS));
            }

            #[test]
            fn a_target_that_is_killed_ends_the_calls_to_it_and_its_name_is_free_again() {
                over("target", deaths::kill_a_target);
            }

            #[test]
            fn a_daemon_that_is_killed_is_a_named_error_and_its_successor_is_found_again() {
                over("daemon", deaths::kill_a_daemon);
            }
        }
    };
}

over!(libfabric, Network::Ofi, is_skipped);
over!(libfabric_polled, Network::Polled, is_skipped);
// Run by tests/verbs-vm, where the cards are.
#[cfg(feature = "verbs")]
over!(verbs, Network::Verbs, has_no_cards);

#[cfg(feature = "verbs")]
#[test]
fn verbs_and_tcp_are_owned_by_one_daemon_that_serves_nodes_in_either() {
    let _watchdog = Watchdog::start();
    if !has_no_cards("several") {
        crate::several::serves_both(Network::Verbs, Network::Tcp);
    }
}

#[cfg(feature = "verbs")]
fn has_no_cards(test: &str) -> bool {
    let is_missing = std::env::var_os("HG_VERBS_DEVICES").is_none();
    if is_missing {
        println!("SKIPPED: {test}: no virtual machine: HG_VERBS_DEVICES names no cards");
    }
    is_missing
}

#[test]
fn a_network_that_cannot_be_opened_is_said_in_a_sentence_that_helps() {
    let _watchdog = Watchdog::start();
    for (url, sentence) in [
        ("sm://", "tcp://, ofi+PROVIDER:// or verbs://"),
        ("ofi+nothing://", "ofi"),
        #[cfg(not(feature = "verbs"))]
        ("verbs://", "--features verbs"),
    ] {
        let refused = hg_visor::Daemon::open(Config::over(url)).unwrap_err().to_string();
        assert!(refused.contains(sentence), "{url}: {refused}");
    }
}
