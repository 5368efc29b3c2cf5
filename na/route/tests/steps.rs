//! A network that sleeps in steps: both ways are slept on, and an idle context looks at neither all the time.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hg_na::{Address, Domain, Error, OpenOptions, Plugin, Sleep};
use hg_na_conformance::{Suite, judge};
use hg_na_ofi::OfiPlugin;
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id};
use uuid::Uuid;

/// libfabric, as with a provider that has nothing to wait on.
#[derive(Debug, Clone, Copy)]
struct Polled;

impl Plugin for Polled {
    fn schemes(&self) -> &[&str] {
        OfiPlugin.schemes()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let mut options = options.clone();
        options.settings.insert("sleep".to_owned(), "off".to_owned());
        OfiPlugin.open(url, &options)
    }
}

/// Routing in which every domain is on a node of its own.
#[derive(Debug, Clone, Copy)]
struct Elsewhere;

impl Plugin for Elsewhere {
    fn schemes(&self) -> &[&str] {
        &["uid", "ofi+tcp"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        static LAST: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only that it is another number each time counts.
        let serial = LAST.fetch_add(1, Ordering::Relaxed);
        let node = Uuid::from_u64_pair(u64::from(std::process::id()), serial);
        Route::new(SmPlugin, Polled, move || Ok(node), &["uid", "ofi+tcp"]).open(url, options)
    }
}

const URL: &str = "ofi+tcp://127.0.0.1";

#[test]
fn it_is_said_how_late_what_comes_is_noticed() {
    let domain = Elsewhere.open(&Address::new(URL).unwrap(), &OpenOptions::listening()).unwrap();
    assert!(matches!(domain.caps().sleep, Sleep::Steps(_)));
    assert!(domain.context(0).unwrap().waiter().fd().is_none());
}

/// The tests in which sleeping matters.
macro_rules! sleeping {
    ($module:ident, $plugin:expr, $($name:ident)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $name() {
                    let suite = Suite::new($plugin, URL).report(watchdog::report);
                    judge(&suite, stringify!($name));
                }
            )*
        }
    };
    ($($module:ident = $plugin:expr;)*) => {
        $(sleeping! {
            $module, $plugin,
            every_accepted_operation_completes_exactly_once
            messages_of_every_size_arrive_whole
            put_and_get_move_any_range_at_any_offset
            a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing
            two_contexts_that_flood_each_other_both_finish
            a_context_sleeps_while_requests_are_withheld
            two_sleeping_threads_never_lose_a_wake_up
            an_idle_context_sleeps_and_stays_asleep
            wake_ends_a_wait_from_any_thread
            a_closing_peer_ends_a_sleep
        })*
    };
}

sleeping! {
    inside_a_node = Route::new(SmPlugin, Polled, node_id, &["uid", "ofi+tcp"]);
    between_nodes = Elsewhere;
}
