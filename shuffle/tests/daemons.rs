//! Shuffles whose ranks go through daemons `hg-visor`: one of a node alone, and two that stand for nodes.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/all_to_all.rs"]
mod all_to_all;
mod common;
#[path = "../../tests/daemons/daemons.rs"]
mod nodes;

use all_to_all::all_to_all_by;
use hg_shuffle::Options;
use nodes::Daemons;

fn through(daemon: &str) -> Options {
    let mut options = Options::default();
    options.local_url = "visor://".to_owned();
    options.network_url = "visor://".to_owned();
    options.network_settings = vec![("daemon".to_owned(), daemon.to_owned())];
    options
}

/// Short messages, none, and some that are longer than a batch, a message of the transport and a window.
const LENGTHS: [usize; 8] = [32, 0, 20_000, 5, 700_000, 1, 300, 0];

fn every_message_arrives(map: &str, daemons: u32) {
    let daemons = Daemons::start(daemons);
    for (by_sender, deliver_inline) in [(false, false), (true, true)] {
        let options = |node| {
            let mut options = through(daemons.name(node));
            options.deliver_inline = deliver_inline;
            options
        };
        options(0).check_transports().unwrap();
        let length = |number: u32| LENGTHS[number as usize % LENGTHS.len()];
        all_to_all_by(by_sender, map, &options, 40, &length);
    }
    for status in daemons.until_nothing_is_left() {
        assert!(status["frames_passed"].as_u64() > Some(100), "{status}");
    }
}

#[test]
fn every_message_arrives_once_and_in_order_through_one_daemon() {
    for map in ["1x3", "2+1"] {
        every_message_arrives(map, 1);
    }
}

#[test]
fn every_message_arrives_once_and_in_order_through_the_daemons_of_two_nodes() {
    for map in ["1+1", "2x2", "3+1"] {
        every_message_arrives(map, 2);
    }
}
