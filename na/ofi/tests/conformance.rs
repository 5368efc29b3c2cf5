//! What every plugin promises, tested over libfabric's providers that work on any machine, and over the ways to use
//! them that are not chosen there by themselves.
//!
//! The suite names domains; a network's have ports instead: [`Ported`] chooses one by the name. `HG_OFI_PROVIDER`
//! runs the network's tests over another provider than tcp: `HG_OFI_PROVIDER=net cargo nextest run ... tcp::`.
//! `HG_OFI_SETTINGS` (`NAME=VALUE,...`) is set in all of them.

use std::sync::Arc;

use hg_na::{Address, Context, Domain, Error, Key, OpenOptions, Plugin};
use hg_na_conformance::{
    Suite, judge,
    layer::{Layer, Layered, Layers},
};
use hg_na_ofi::OfiPlugin;

/// Names the provider instead of tcp.
const PROVIDER: &str = "HG_OFI_PROVIDER";
/// Settings of every domain.
const SETTINGS: &str = "HG_OFI_SETTINGS";
/// Ports below those that the kernel gives out by itself.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

/// The plugin with settings of its own, and with names for ports: `ofi+tcp://127.0.0.1:conformance-12-3`.
#[derive(Debug, Clone, Copy)]
struct Ported(&'static [(&'static str, &'static str)]);

/// As it is opened without a setting.
const USUAL: Ported = Ported(&[]);
/// As with a provider without multi-receive buffers.
const SINGLE: Ported = Ported(&[("multi-receive", "off")]);
/// As with a provider that has tagged messages only, no one-sided operations and nothing to wait on.
const POOR: Ported = Ported(&[("messages", "tagged"), ("rma", "off"), ("sleep", "off")]);

/// With a key, which lifelines are sealed with.
#[cfg(feature = "key")]
const SEALED: Ported = Ported(&[(KEY, "")]);
/// No setting: stands for a key that is handed over.
const KEY: &str = "key that is handed over";

impl Plugin for Ported {
    fn schemes(&self) -> &[&str] {
        &["ofi+tcp", "ofi+shm", "ofi+net", "ofi+udp", "ofi+sockets"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let other = std::env::var(PROVIDER).ok().and_then(|provider| {
            let rest = url.as_str().strip_prefix("ofi+tcp://")?;
            Address::new(&format!("ofi+{provider}://{rest}")).ok()
        });
        let url = other.as_ref().unwrap_or(url);
        let mut options = options.clone();
        let further = std::env::var(SETTINGS).unwrap_or_default();
        let further = further.split(',').filter_map(|setting| setting.split_once('='));
        for (name, value) in self.0.iter().copied().chain(further) {
            options.settings.insert(name.to_owned(), value.to_owned());
        }
        options.key = options.settings.remove(KEY).map(|_| Key([7; 32]));
        let Some((start, name)) = url.as_str().split_once("127.0.0.1:") else {
            return OfiPlugin.open(url, &options);
        };
        let number = |hash: u64, byte: u8| hash.wrapping_mul(31).wrapping_add(u64::from(byte));
        let port = PORTS.start + name.bytes().fold(7, number) % (PORTS.end - PORTS.start);
        OfiPlugin.open(&Address::new(&format!("{start}127.0.0.1:{port}"))?, &options)
    }
}

mod tcp {
    hg_na_conformance::suite!(
        super::USUAL,
        "ofi+tcp://127.0.0.1",
        named = "ofi+tcp://127.0.0.1:{}",
        report = watchdog::report
    );
}

mod shm {
    hg_na_conformance::suite!(
        super::USUAL,
        "ofi+shm://",
        named = "ofi+shm://{}",
        report = watchdog::report
    );
}

/// Has something to do at every third question, as one may whose lifeline is looked at only then.
#[derive(Debug)]
struct Hesitant(u32);

impl Layer for Hesitant {
    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        self.0 += 1;
        !self.0.is_multiple_of(3) && inner.may_sleep()
    }
}

#[derive(Debug)]
struct Hesitation;

impl Layers for Hesitation {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(Hesitant(0))
    }
}

#[test]
fn who_hesitates_to_sleep_is_asked_again_after_a_round() {
    let suite = Suite::new(Layered::new(OfiPlugin, Hesitation), "ofi+tcp://127.0.0.1");
    judge(
        &suite.report(watchdog::report),
        "the_descriptor_becomes_readable_for_a_foreign_event_loop",
    );
}

/// Whether the library that is here lacks a provider: then the test is skipped, aloud.
#[expect(clippy::print_stdout, reason = "says what is skipped")]
fn is_skipped(test: &str, url: &str) -> bool {
    let url = Address::new(url).expect("an address");
    let opened = OfiPlugin.open(&url, &OpenOptions::listening());
    let is_missing = matches!(opened, Err(Error::Missing { .. }));
    if is_missing {
        println!("SKIPPED: {test}: libfabric offers no {} here", url.scheme());
    }
    is_missing
}

/// The tests in which the kind of receives, of messages and of waiting matters, with settings of their own.
macro_rules! chosen {
    ($module:ident, $plugin:expr, $url:literal, $($name:ident)*) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    if crate::is_skipped(concat!(stringify!($module), "::", stringify!($name)), $url) {
                        return;
                    }
                    hg_na_conformance::judge(
                        &hg_na_conformance::Suite::new($plugin, $url).report(watchdog::report),
                        stringify!($name),
                    );
                }
            )*
        }
    };
    ($($module:ident = $plugin:expr, $url:literal;)*) => {
        $(chosen! {
            $module, $plugin, $url,
            every_accepted_operation_completes_exactly_once
            cancelled_sends_complete_and_those_never_sent_do_not_arrive
            quiet_sends_arrive_and_their_failures_are_told
            messages_of_every_size_arrive_whole
            unexpected_messages_arrive_in_order
            control_messages_arrive_in_order
            expected_messages_arrive_in_order
            a_context_reaches_itself
            many_peers_reach_one
            expected_messages_match_by_peer_and_tag
            an_expected_message_without_a_receive_is_dropped
            messages_that_nobody_waits_for_stop_no_others
            the_late_answer_to_a_cancelled_receive_is_dropped
            a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing
            two_contexts_that_flood_each_other_both_finish
            answers_and_control_messages_pass_closed_admission
            answers_and_control_messages_do_not_wait_for_a_target_out_of_credits
            closed_admission_stops_unexpected_messages_until_it_opens
            admission_closed_to_one_peer_keeps_its_requests_and_nothing_else
            a_context_sleeps_while_requests_are_withheld
            a_peer_that_is_not_admitted_hangs_up_and_its_requests_wait
            a_hang_up_is_told_while_requests_are_withheld
            a_hang_up_is_told_after_answers_and_control_messages
            messages_one_byte_too_long_are_refused
            a_closed_peer_is_gone_after_everything_that_it_had_sent
            put_and_get_move_any_range_at_any_offset
            segmented_memory_cut_differently_on_both_sides_is_moved_whole
            a_message_after_a_put_arrives_after_its_bytes
            two_sleeping_threads_never_lose_a_wake_up
            an_idle_context_sleeps_and_stays_asleep
            a_post_behind_full_queues_is_sent_when_the_peer_drains
        })*
    };
}

chosen! {
    tcp_single = crate::SINGLE, "ofi+tcp://127.0.0.1";
    shm_single = crate::SINGLE, "ofi+shm://";
    tcp_poor = crate::POOR, "ofi+tcp://127.0.0.1";
    shm_poor = crate::POOR, "ofi+shm://";
    net = crate::USUAL, "ofi+net://127.0.0.1";
    udp = crate::USUAL, "ofi+udp://127.0.0.1";
}

#[cfg(feature = "key")]
chosen! {
    tcp_sealed = crate::SEALED, "ofi+tcp://127.0.0.1";
    shm_sealed = crate::SEALED, "ofi+shm://";
}
