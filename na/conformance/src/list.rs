//! The list of all tests, once: as functions, and as the macro that makes `#[test]`s of them.

/// Takes `$` (to write the inner macro with) and the tests by module.
macro_rules! define_suite {
    (
        $d:tt
        anywhere { $($module:ident { $($name:ident)* })* }
        with_processes { $($process_module:ident { $($process_name:ident)* })* }
    ) => {
        /// Every test that needs one process only.
        pub const TESTS: &[crate::Test] = &[
            $($(crate::Test {
                name: stringify!($name),
                run: crate::tests::$module::$name,
            },)*)*
        ];

        /// Every test that starts a second process.
        pub const PROCESS_TESTS: &[crate::Test] = &[
            $($(crate::Test {
                name: stringify!($process_name),
                run: crate::tests::$process_module::$process_name,
            },)*)*
        ];

        /// Makes one `#[test]` of each test of the suite; see the crate's page.
        #[macro_export]
        macro_rules! suite {
            ($d plugin:expr, $d url:expr $d (, named = $d named:expr)? $d (, frozen = $d frozen:expr)?
                $d (, shareable = $d shareable:expr)? $d (, report = $d report:expr)? $d (,)?) => {
                $crate::suite!(@suite $crate::Suite::new($d plugin, $d url) $d (.named($d named))?
                    $d (.frozen($d frozen))? $d (.shareable($d shareable))? $d (.report($d report))?,
                    processes);
            };
            ($d plugin:expr, $d url:expr, in_process_only $d (,)?) => {
                $crate::suite!(@suite $crate::Suite::new($d plugin, $d url), one_process);
            };
            (@suite $d suite:expr, one_process) => {
                $($(
                    #[test]
                    fn $name() {
                        $crate::judge(&$d suite, stringify!($name));
                    }
                )*)*
            };
            (@suite $d suite:expr, processes) => {
                $crate::suite!(@suite $d suite, one_process);
                $($(
                    #[test]
                    fn $process_name() {
                        $crate::judge(&$d suite.in_module(module_path!()), stringify!($process_name));
                    }
                )*)*
                #[test]
                fn a_second_process_is_answered_and_ends_with_its_parent() {
                    $crate::judge_child(&$d suite.in_module(module_path!()));
                }
            };
        }
    };
}

define_suite! { $
    anywhere {
        completion {
            every_accepted_operation_completes_exactly_once
            a_cancelled_receive_completes_without_help_of_its_peer
            cancelled_sends_complete_and_those_never_sent_do_not_arrive
            cancelling_what_has_ended_or_never_was_is_ignored
            a_posted_vector_is_handed_back
            quiet_sends_arrive_and_their_failures_are_told
        }
        messages {
            an_unexpected_message_needs_no_posted_receive
            messages_of_every_size_arrive_whole
            memory_of_the_transport_carries_messages_of_every_size
            a_message_dropped_instead_of_posted_costs_nothing
            unexpected_messages_arrive_in_order
            control_messages_arrive_in_order
            expected_messages_arrive_in_order
            answers_and_control_messages_of_a_burst_arrive_each_in_order
            a_context_reaches_itself
            many_peers_reach_one
            a_received_message_outlives_its_connection
        }
        matching {
            an_expected_message_without_a_receive_is_dropped
            messages_that_nobody_waits_for_stop_no_others
            expected_messages_match_by_peer_and_tag
            a_tag_is_good_again_once_its_message_was_received
            a_second_receive_for_one_peer_and_tag_is_refused
            the_late_answer_to_a_cancelled_receive_is_dropped
            the_answer_to_a_cancelled_receive_matches_no_other
        }
        short_cuts {
            calls_by_short_cuts_are_as_if_posted
            a_long_request_by_the_short_cut_is_as_if_posted
            a_short_cut_that_is_not_taken_has_done_nothing
        }
        flow {
            a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing
            two_contexts_that_flood_each_other_both_finish
            answers_and_control_messages_pass_closed_admission
            answers_and_control_messages_do_not_wait_for_a_target_out_of_credits
            closed_admission_stops_unexpected_messages_until_it_opens
        }
        room {
            room_is_told_once_when_a_full_queue_has_emptied
            a_cancel_makes_room
            no_room_is_told_at_a_peer_that_has_hung_up
        }
        flushes {
            what_was_flushed_arrives_although_its_sender_closes
            a_flush_does_not_wait_for_what_comes_later_or_for_who_is_gone
            who_is_connected_is_known_and_nobody_else
        }
        admission {
            admission_closed_to_one_peer_keeps_its_requests_and_nothing_else
            requests_are_taken_while_admission_is_open_to_all_and_to_their_sender
            a_context_sleeps_while_requests_are_withheld
            opening_admission_lets_a_sleeper_look
            a_peer_that_is_not_admitted_hangs_up_and_its_requests_wait
            the_next_incarnation_of_a_peer_that_was_not_admitted_is
        }
        refusals {
            messages_one_byte_too_long_are_refused
            the_limits_are_those_of_the_contract
            handles_that_were_never_given_out_are_refused
            addresses_of_other_plugins_are_refused
        }
        opening {
            a_setting_that_nobody_knows_is_refused
            a_name_in_use_is_refused
            what_is_offered_opens_and_what_is_missing_says_why
            a_context_id_is_open_once_at_a_time
            an_address_names_one_context_of_several
            an_address_that_follows_from_another_contexts_is_the_contexts_own
            a_context_that_does_not_listen_can_call_but_not_be_called
            contexts_of_one_domain_work_in_several_threads
        }
        peers {
            a_closed_peer_is_gone_after_everything_that_it_had_sent
            operations_to_a_peer_that_closes_end_before_it_is_gone
            operations_to_an_address_where_nobody_listens_end_with_peer_gone
            a_peer_that_restarts_is_a_new_peer
            an_old_handle_never_reaches_the_next_incarnation
            a_forgotten_peer_ends_with_its_operations
            a_handle_that_was_never_used_can_be_forgotten
            looking_up_twice_gives_one_handle
            peers_looked_up_one_after_the_other_are_all_reached
            a_hundred_incarnations_leave_the_table_flat
            a_thousand_lookups_and_forgets_leave_the_table_flat
        }
        hang_ups {
            a_hang_up_is_told_while_requests_are_withheld
            a_hang_up_is_told_after_answers_and_control_messages
            a_hang_up_is_told_when_every_operation_has_ended
            a_forgotten_peer_hangs_up_while_its_requests_are_withheld
            who_restarts_is_looked_up_anew_while_the_old_ones_requests_are_withheld
        }
        identities {
            a_peer_is_the_same_one_until_it_is_gone
            nothing_is_known_of_a_peer_that_was_forgotten_or_never_there
        }
        one_sided {
            put_and_get_move_any_range_at_any_offset
            segmented_memory_cut_differently_on_both_sides_is_moved_whole
            memory_that_does_not_grant_it_is_not_touched
            memory_outside_of_the_region_is_not_touched
            local_and_remote_ranges_of_different_lengths_are_refused
            memory_that_is_not_registered_any_more_is_not_touched
            a_descriptor_with_any_bit_wrong_touches_nothing
            a_descriptor_is_good_only_for_its_owner
            memory_that_cannot_be_written_grants_no_writing
            a_message_after_a_put_arrives_after_its_bytes
            a_region_in_use_is_not_unregistered
        }
        begun {
            transfers_that_were_begun_are_over_and_leave_rounds_their_turn
            who_is_to_begin_later_is_told_of_room_and_begins_then
            a_mover_needs_no_context_and_no_thread_of_its_own
            a_mover_that_is_dropped_moves_nothing_and_holds_nothing
            what_was_begun_does_not_touch_memory_that_its_owner_has_got_back
            what_was_begun_is_moved_or_fails_whoever_has_closed
        }
        fetched {
            bytes_fetched_at_once_are_the_peers
            nothing_is_fetched_that_was_not_granted
            fetching_leaves_rounds_their_turn
        }
        views {
            a_view_sees_what_its_owner_has_registered
            only_memory_that_never_changes_is_seen_as_a_slice
            a_view_stays_valid_when_its_owner_unregisters_and_closes
            what_an_owner_writes_after_unregistering_is_not_seen
            memory_that_may_not_be_seen_is_refused
            a_cancelled_view_completes_once
        }
        sleeping {
            two_sleeping_threads_never_lose_a_wake_up
            what_arrived_before_the_question_is_not_slept_through
            an_idle_context_sleeps_and_stays_asleep
            wake_ends_a_wait_from_any_thread
            a_closing_peer_ends_a_sleep
            credits_that_come_back_end_a_sleep
            the_descriptor_becomes_readable_for_a_foreign_event_loop
        }
        asleep {
            posts_to_a_fresh_peer_end_a_sleep
            posts_to_an_open_peer_get_under_way_beside_a_sleep
            a_post_behind_full_queues_is_sent_when_the_peer_drains
            a_cancel_ends_a_sleep
            a_forget_ends_a_sleep
            room_ends_a_sleep
            a_flush_that_ends_ends_a_sleep
        }
        chaos {
            with_dropped_connections_every_accepted_operation_completes_exactly_once
        }
    }
    with_processes {
        processes {
            a_killed_peer_hangs_up_while_its_requests_are_withheld
            a_killed_peer_ends_every_operation_with_peer_gone
            put_and_get_reach_another_process
            killed_peers_cost_nobody_else_anything
            the_death_of_a_peer_ends_a_sleep
            a_process_that_takes_a_dead_ones_address_is_a_new_peer
        }
        identities {
            a_second_process_is_known_by_nothing_but_its_own_id_and_user
        }
        views {
            a_view_stays_valid_when_its_owner_is_killed
        }
    }
}
