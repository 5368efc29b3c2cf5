//! The suite is tested itself: each broken plugin fails the test that is meant for it, with a
//! sentence that says what is broken; the same wrapper without a flaw passes.

mod flaws;
mod flushes;
mod kind;
mod movers;
mod offers;
mod regions;
mod rooms;
mod views;
mod waiters;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use flaws::{Broken, Flaw};
use hg_na::{Address, Completion, Context, Error, Identity, Peer};
use hg_na_conformance::{
    Faults, Faulty, Mem, Patience, Suite, TESTS,
    layer::{Layer, Layered, Layers},
};

fn suite(flaw: Flaw, patience: Patience) -> Suite {
    Suite::new(Layered::new(Mem::default(), Broken::new(flaw)), "mem://").patience(patience)
}

/// The tests step everything in one thread, so that a number of rounds in which nothing moves
/// proves that nothing will; only a sleep needs time.
const IMPATIENT: Patience = Patience {
    time: Duration::from_secs(60),
    idle_rounds: 2000,
    sleep: Duration::from_millis(300),
};

fn run(suite: &Suite, name: &str) -> Result<(), String> {
    let test = TESTS.iter().find(|test| test.name == name).unwrap_or_else(|| panic!("{name}"));
    suite.run(*test)
}

/// Every flaw, a test that catches it, and words of the verdict.
const CAUGHT_BY: &[(Flaw, &str, &str)] = &[
    (Flaw::FetchesNothing, "bytes_fetched_at_once_are_the_peers", "other bytes than the peer's"),
    (Flaw::FetchesNothing, "nothing_is_fetched_that_was_not_granted", "without rights"),
    (Flaw::FetchesNothing, "fetching_leaves_rounds_their_turn", "without a round"),
    (Flaw::KeepsQuietFailures, "quiet_sends_arrive_and_their_failures_are_told", "to nobody ended"),
    (
        Flaw::EndsReceivesBeforeSends,
        "operations_to_a_peer_that_closes_end_before_it_is_gone",
        "ended after",
    ),
    (Flaw::LosesCompletions, "every_accepted_operation_completes_exactly_once", "never happened"),
    (Flaw::DuplicatesCompletions, "every_accepted_operation_completes_exactly_once", "not open"),
    (Flaw::MixesTokensUp, "an_unexpected_message_needs_no_posted_receive", "another token"),
    (Flaw::ReordersMessages, "unexpected_messages_arrive_in_order", "in place of"),
    (Flaw::ReordersMessages, "control_messages_arrive_in_order", "in place of"),
    (Flaw::CutsLongMessages, "messages_of_every_size_arrive_whole", "other bytes"),
    (
        Flaw::IgnoresCancel,
        "a_cancelled_receive_completes_without_help_of_its_peer",
        "never happened",
    ),
    (
        Flaw::NeverReportsDeath,
        "a_closed_peer_is_gone_after_everything_that_it_had_sent",
        "never happened",
    ),
    (Flaw::ReportsDeathOnlyWhenAsked, "a_closing_peer_ends_a_sleep", "slept through"),
    (
        Flaw::ReportsDeathOnlyWhenAsked,
        "a_closed_peer_is_gone_after_everything_that_it_had_sent",
        "never happened",
    ),
    (
        Flaw::ReportsDeathTwice,
        "a_closed_peer_is_gone_after_everything_that_it_had_sent",
        "gone twice",
    ),
    (
        Flaw::ReportsDeathBeforeData,
        "a_closed_peer_is_gone_after_everything_that_it_had_sent",
        "was gone",
    ),
    (
        Flaw::ReportsDeathBeforeOperations,
        "operations_to_a_peer_that_closes_end_before_it_is_gone",
        "hung up before",
    ),
    (Flaw::ReusesHandles, "a_hundred_incarnations_leave_the_table_flat", "was gone"),
    (Flaw::ReusesHandles, "a_peer_that_restarts_is_a_new_peer", "had hung up"),
    (Flaw::SkipsBoundsCheck, "memory_outside_of_the_region_is_not_touched", "succeeded"),
    (Flaw::SkipsRightsCheck, "memory_that_does_not_grant_it_is_not_touched", "succeeded"),
    (
        Flaw::SkipsFreshnessCheck,
        "memory_that_is_not_registered_any_more_is_not_touched",
        "succeeded",
    ),
    (Flaw::CompletesPutsEarly, "a_message_after_a_put_arrives_after_its_bytes", "too early"),
    (
        Flaw::SleepsWithoutRecheck,
        "what_arrived_before_the_question_is_not_slept_through",
        "slept through",
    ),
    (Flaw::SleepsWithoutRecheck, "two_sleeping_threads_never_lose_a_wake_up", "slept through"),
    (Flaw::NeverSleepsSoundly, "an_idle_context_sleeps_and_stays_asleep", "ended within"),
    (Flaw::SleepsOnWhenPosting, "posts_to_a_fresh_peer_end_a_sleep", "slept through"),
    (
        Flaw::SleepsOnWhenPosting,
        "posts_to_an_open_peer_get_under_way_beside_a_sleep",
        "slept through",
    ),
    (
        Flaw::SleepsOnWhenPosting,
        "a_post_behind_full_queues_is_sent_when_the_peer_drains",
        "slept through",
    ),
    (Flaw::SleepsOnWhenPosting, "a_cancel_ends_a_sleep", "slept through"),
    (Flaw::SleepsOnWhenPosting, "a_forget_ends_a_sleep", "slept through"),
    (
        Flaw::DuplicatesCompletions,
        "with_dropped_connections_every_accepted_operation_completes_exactly_once",
        "not open",
    ),
    (
        Flaw::LosesCompletions,
        "with_dropped_connections_every_accepted_operation_completes_exactly_once",
        "hung up before",
    ),
    (Flaw::IgnoresWake, "wake_ends_a_wait_from_any_thread", "slept through"),
    (Flaw::HidesItsProgress, "an_unexpected_message_needs_no_posted_receive", "answered false"),
    (Flaw::MatchesLateReceives, "an_expected_message_without_a_receive_is_dropped", "from before"),
    (Flaw::DeliversLateAnswers, "the_late_answer_to_a_cancelled_receive_is_dropped", "instead of"),
    (Flaw::TakesTagsTwice, "a_second_receive_for_one_peer_and_tag_is_refused", "was accepted"),
    (Flaw::SwallowsRefused, "messages_one_byte_too_long_are_refused", "came back changed"),
    (Flaw::KeepsVectors, "a_posted_vector_is_handed_back", "another vector"),
    (
        Flaw::BlocksAnswersBehindRequests,
        "answers_and_control_messages_do_not_wait_for_a_target_out_of_credits",
        "for ever",
    ),
    (
        Flaw::BlocksAnswersBehindRequests,
        "answers_and_control_messages_pass_closed_admission",
        "for ever",
    ),
    (
        Flaw::IgnoresAdmission,
        "closed_admission_stops_unexpected_messages_until_it_opens",
        "were taken",
    ),
    (
        Flaw::IgnoresAdmission,
        "requests_are_taken_while_admission_is_open_to_all_and_to_their_sender",
        "were taken",
    ),
    (
        Flaw::IgnoresAdmissionOfOne,
        "admission_closed_to_one_peer_keeps_its_requests_and_nothing_else",
        "request that passes",
    ),
    (
        Flaw::IgnoresAdmissionOfOne,
        "a_peer_that_is_not_admitted_hangs_up_and_its_requests_wait",
        "that passes",
    ),
    (
        Flaw::ShutsAllOut,
        "admission_closed_to_one_peer_keeps_its_requests_and_nothing_else",
        "never happened",
    ),
    (Flaw::SpinsOverWithheld, "a_context_sleeps_while_requests_are_withheld", "never agreed"),
    (Flaw::NeverHangsUp, "a_closed_peer_is_gone_after_everything_that_it_had_sent", "before as"),
    (Flaw::HangsUpTwice, "a_forgotten_peer_ends_with_its_operations", "hung up twice"),
    (Flaw::HangsUpLate, "a_hang_up_is_told_while_requests_are_withheld", "a hang-up was told"),
    (Flaw::HangsUpOtherwise, "a_handle_that_was_never_used_can_be_forgotten", "before as"),
    (
        Flaw::HangsUpBeforeControls,
        "a_hang_up_is_told_after_answers_and_control_messages",
        "had hung up",
    ),
    (
        Flaw::HangsUpBeforeOperations,
        "a_hang_up_is_told_when_every_operation_has_ended",
        "hung up before",
    ),
    (Flaw::BuriesWhatIsWithheld, "a_hang_up_is_told_while_requests_are_withheld", "was gone"),
    (Flaw::PostsAfterHangUps, "a_hang_up_is_told_while_requests_are_withheld", "after its peer"),
    (
        Flaw::QueuesWithoutBound,
        "a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing",
        "takes none",
    ),
    (
        Flaw::BlocksWhenFull,
        "a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing",
        "a call blocked: no end after 2s\nits stacks",
    ),
    (Flaw::FadesViews, "a_view_stays_valid_when_its_owner_unregisters_and_closes", "ended a view"),
    (Flaw::ExchangesWithoutReceives, "calls_by_short_cuts_are_as_if_posted", "never happened"),
    (Flaw::ExchangesByHalves, "a_short_cut_that_is_not_taken_has_done_nothing", "not open"),
    (
        Flaw::NeverTellsRoom,
        "room_is_told_once_when_a_full_queue_has_emptied",
        "never happened that room was told",
    ),
    (Flaw::NeverTellsRoom, "a_cancel_makes_room", "never happened"),
    (Flaw::NeverTellsRoom, "room_ends_a_sleep", "slept through"),
    (Flaw::TellsRoomAtOnce, "room_is_told_once_when_a_full_queue_has_emptied", "there was none"),
    (
        Flaw::TellsRoomTwice,
        "room_is_told_once_when_a_full_queue_has_emptied",
        "had refused nothing since",
    ),
    (
        Flaw::TellsRoomForEachRefusal,
        "room_is_told_once_when_a_full_queue_has_emptied",
        "room was told at [",
    ),
    (Flaw::TellsRoomAfterHangUps, "no_room_is_told_at_a_peer_that_has_hung_up", "had hung up"),
    (Flaw::HidesSlices, "only_memory_that_never_changes_is_seen_as_a_slice", "gives no slice"),
];

#[test]
fn each_broken_plugin_is_caught_by_the_test_that_is_meant_for_it() {
    let mut escaped = Vec::new();
    for (flaw, test, words) in CAUGHT_BY {
        let mut suite = suite(*flaw, IMPATIENT);
        if *flaw == Flaw::BlocksWhenFull {
            suite = suite.blocked_after(Duration::from_secs(2)).report(|| "its stacks".to_owned());
        }
        match run(&suite, test) {
            Err(sentence) if sentence.contains(words) => {}
            other => escaped.push(format!("{flaw:?} in {test}: {other:?}")),
        }
    }
    assert!(escaped.is_empty(), "not caught:\n{}", escaped.join("\n"));
}

#[test]
fn the_same_tests_pass_without_a_flaw() {
    let patience = Patience { sleep: Duration::from_secs(30), ..IMPATIENT };
    for (_, test, _) in CAUGHT_BY {
        if let Err(sentence) = run(&suite(Flaw::None, patience), test) {
            panic!("{test}: {sentence}");
        }
    }
}

/// Forgets that the plugin has a timer.
#[derive(Debug)]
struct WithoutDeadline;

impl Layer for WithoutDeadline {
    fn next_deadline(&self, _inner: &dyn Context) -> Option<Instant> {
        None
    }
}

impl Layers for WithoutDeadline {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(WithoutDeadline)
    }
}

#[test]
fn a_plugin_that_hides_its_deadline_is_caught_asleep() {
    let faults = Faults { delay_one_in: 5, delay: Duration::from_micros(500), ..Faults::default() };
    let late = Layered::new(Faulty::new(Mem::default(), faults), WithoutDeadline);
    let suite = Suite::new(late, "mem://").patience(IMPATIENT);
    let verdict = run(&suite, "two_sleeping_threads_never_lose_a_wake_up");
    assert!(verdict.as_ref().is_err_and(|why| why.contains("slept through")), "{verdict:?}");
}

/// Believes whoever says who it is.
#[derive(Debug, Clone, Copy)]
enum Credulous {
    /// Everybody, also whoever is gone.
    Always,
    /// Whoever has hung up is somebody else.
    AfterHangUps,
}

#[derive(Debug)]
struct CredulousLayer(Credulous, HashSet<Peer>);

impl Layer for CredulousLayer {
    fn identity(&self, _inner: &dyn Context, peer: Peer) -> Identity {
        match self.0 {
            Credulous::Always => Identity::process(1, 0),
            Credulous::AfterHangUps if self.1.contains(&peer) => {
                Identity::network(([127, 0, 0, 1], 1).into())
            }
            Credulous::AfterHangUps => Identity::default(),
        }
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let moved = inner.progress(now, done);
        for completion in done {
            if let Completion::HungUp { peer, .. } = completion {
                self.1.insert(*peer);
            }
        }
        moved
    }
}

impl Layers for Credulous {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(CredulousLayer(*self, HashSet::new()))
    }
}

#[test]
fn a_plugin_that_says_what_nobody_vouches_for_is_caught() {
    let [stays, ends] = [
        "a_peer_is_the_same_one_until_it_is_gone",
        "nothing_is_known_of_a_peer_that_was_forgotten_or_never_there",
    ];
    for (flaw, test, words) in [
        (Credulous::Always, stays, "is said to be"),
        (Credulous::Always, ends, "of nobody"),
        (Credulous::AfterHangUps, stays, ", then Identity"),
        (Credulous::AfterHangUps, ends, "of nobody"),
    ] {
        let suite = Suite::new(Layered::new(Mem::default(), flaw), "mem://").patience(IMPATIENT);
        let verdict = run(&suite, test);
        assert!(verdict.as_ref().is_err_and(|why| why.contains(words)), "{flaw:?}: {verdict:?}");
    }
}
