//! Searches of positions whose results are known, with every way of sharing the work.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/walk.rs"]
mod walk;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use common::{all_settings, balanced, board, opening_wins, small};
use faulty::Faulty;
use hg_mcts::{
    Budget, Game, Outcome, Parallelism, Placement, Player, Search, Settings, TicTacToe, VirtualLoss,
};
use walk::Walk;
use watchdog::Watchdog;

#[test]
fn every_way_of_searching_opens_with_a_move_that_wins() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        for (size, rollouts) in [(3, 2_000), (4, 4_000), (5, 12_000)] {
            let mut search = Search::new(board(size, ""), settings.clone()).unwrap();
            let found = search.run(Budget::rollouts(rollouts)).unwrap();
            assert!(opening_wins(size, found.best.unwrap()), "{size}: {found:?} by {settings:?}");
            balanced(&search);
        }
    }
}

/// Searches after an opening that loses, and has one reply that wins.
fn reply(settings: &Settings, (size, opening, reply): (u8, &str, &str), rollouts: u64) {
    let mut search = Search::new(board(size, opening), settings.clone()).expect("good settings");
    let found = search.run(Budget::rollouts(rollouts)).expect("no other process");
    let best = found.best.map(|best| search.position().format_move(best));
    assert_eq!(best.as_deref(), Some(reply), "after {opening}: {found:?} by {settings:?}");
}

#[test]
fn every_way_of_searching_finds_the_only_reply_that_wins() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        reply(&settings, (3, "a1", "b2"), 5_000);
        reply(&settings, (4, "a2", "b3"), 60_000);
    }
}

#[test]
fn the_only_reply_that_wins_on_a_board_of_five_is_found() {
    let _watchdog = Watchdog::start();
    // Each placement and each virtual loss once.
    for settings in all_settings().into_iter().filter(|it| it.workers < 3) {
        let is_plain = settings.virtual_loss == VirtualLoss::Unobserved;
        if is_plain || settings.placement == Placement::Random {
            reply(&settings, (5, "a3", "b4"), 150_000);
        }
    }
}

#[test]
fn small_boards_are_solved() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        let settings = Settings { simulations: 1, ..settings };
        for size in [2, 3] {
            for opening in 0..u16::from(size) * u16::from(size) {
                let mut position = board(size, "");
                position.play(opening);
                let mut search = Search::new(position, settings.clone()).unwrap();
                let found = search.run(Budget::rollouts(50_000)).unwrap();
                let winner =
                    if opening_wins(size, opening) { Player::First } else { Player::Second };
                assert_eq!(
                    found.proof,
                    Some(Outcome::Won(winner)),
                    "{size} {opening} {settings:?}"
                );
            }
        }
        if settings.virtual_loss != VirtualLoss::Unobserved {
            continue;
        }
        let mut search = Search::new(board(4, ""), settings.clone()).unwrap();
        let found = search.run(Budget::rollouts(3_000_000)).unwrap();
        assert_eq!(found.proof, Some(Outcome::Won(Player::First)), "{settings:?}");
        assert!(opening_wins(4, found.best.unwrap()));
    }
}

#[test]
fn with_little_memory_nodes_are_pruned_and_the_board_is_solved_nevertheless() {
    let _watchdog = Watchdog::start();
    let (tree, merged) = (Parallelism::Tree, Parallelism::Merged);
    for (workers, parallelism) in [(1, tree), (2, tree), (2, merged)] {
        let merging = if parallelism == merged { 40 << 10 } else { 0 };
        let each = hg_mcts::MEMORY_MIN + merging;
        let memory = usize::from(workers) * each;
        let settings =
            Settings { workers, memory, parallelism, simulations: 1, ..Settings::default() };
        let mut search = Search::new(board(4, ""), settings).unwrap();
        let found = search.run(Budget::rollouts(20_000_000)).unwrap();
        assert_eq!(found.proof, Some(Outcome::Won(Player::First)));
        for stats in &found.workers {
            assert!(stats.pruned > 0 && stats.tree_bytes <= each, "{stats:?}");
        }
        assert_eq!((search.audit().unwrap().under_way, search.audit().unwrap().unbalanced), (0, 0));
    }
}

#[test]
fn everything_adds_up_at_the_end_of_a_phase() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        let mut search = Search::new(board(7, ""), settings.clone()).unwrap();
        let mut rollouts = 0;
        for phase in 1..=3 {
            let found = search.run(Budget::rollouts(2_000)).unwrap();
            rollouts += found.last.rollouts;
            assert_eq!(found.last.rollouts, 2_000, "{settings:?}");
            assert_eq!(found.visits, rollouts * 4, "phase {phase} of {settings:?}");
            assert_eq!(found.candidates.iter().map(|it| it.visits).sum::<u64>(), found.visits);
            let simulated: u64 = found.workers.iter().map(|it| it.simulations).sum();
            assert_eq!(simulated, 8_000);
            balanced(&search);
        }
    }
}

#[test]
fn a_whole_game_is_played_on_one_tree() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        let mut search = Search::new(board(5, "").with_swap(), settings).unwrap();
        while let Some(best) = search.run(Budget::rollouts(300)).unwrap().best {
            assert!(search.position().is_legal(best));
            search.advance(best);
            assert_eq!(
                (search.audit().unwrap().under_way, search.audit().unwrap().waiting),
                (0, 0)
            );
        }
        assert!(search.position().outcome().is_some());
        let over = search.run(Budget::rollouts(300)).unwrap();
        assert_eq!((over.proof, over.last.rollouts), (search.position().outcome(), 0));
    }
}

#[test]
fn a_move_keeps_what_was_found_out_about_it() {
    let mut search = Search::new(board(5, ""), Settings { workers: 1, ..small() }).unwrap();
    let found = search.run(Budget::rollouts(5_000)).unwrap();
    let line = search.variation(3);
    assert_eq!(Some(line[0]), found.best);
    search.advance(line[0]);
    let next = search.run(Budget::rollouts(1)).unwrap();
    assert!(next.visits > 4 * 500, "{}", next.visits);
}

#[test]
fn one_worker_makes_the_same_search_again() {
    let _watchdog = Watchdog::start();
    for simulations in [1, 16] {
        for placement in [Placement::Random, Placement::Hash, Placement::Local(2)] {
            let run = |seed| {
                let settings = Settings { simulations, placement, seed, ..Settings::default() };
                let mut search = Search::new(board(9, "e5"), settings).unwrap();
                let first = search.run(Budget::rollouts(3_000)).unwrap();
                search.advance(first.best.unwrap());
                let second = search.run(Budget::rollouts(3_000)).unwrap();
                (first.candidates, second.candidates, search.variation(9))
            };
            assert_eq!(run(3), run(3));
            assert_ne!(run(3), run(4));
        }
    }
}

#[test]
fn noughts_and_crosses_is_drawn() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        let settings = Settings { simulations: 1, ..settings };
        let mut search = Search::new(TicTacToe::default(), settings.clone()).unwrap();
        let found = search.run(Budget::rollouts(2_000_000)).unwrap();
        assert_eq!(found.proof, Some(Outcome::Drawn), "{settings:?}");
        assert_eq!(search.audit().unwrap().under_way, 0);
        // A corner is answered in the middle, or lost.
        let mut position = TicTacToe::default();
        position.play(0);
        let mut search = Search::new(position, settings).unwrap();
        assert_eq!(search.run(Budget::rollouts(2_000_000)).unwrap().best, Some(4));
    }
}

#[test]
fn a_phase_ends_when_its_time_is_over() {
    let _watchdog = Watchdog::start();
    for settings in all_settings() {
        let mut search = Search::new(board(19, ""), settings).unwrap();
        let mut told = 0;
        let found =
            search.run_with(Budget::time(Duration::from_millis(20)), |_| told += 1).unwrap();
        assert!(found.last.rollouts > 0 && told > 0 && found.samples.len() >= 2);
        assert!(found.last.elapsed >= Duration::from_millis(20));
        balanced(&search);
    }
}

#[test]
fn a_game_that_panics_ends_the_phase_on_all_threads() {
    let _watchdog = Watchdog::start();
    let merged = (2, Parallelism::Merged);
    for (workers, parallelism) in
        [1, 2, 4].map(|it| (it, Parallelism::Tree)).into_iter().chain([merged])
    {
        let settings = Settings { workers, parallelism, ..small() };
        let mut search =
            Search::new(Faulty { board: board(7, ""), odds: 1_000 }, settings).unwrap();
        let run =
            catch_unwind(AssertUnwindSafe(|| search.run(Budget::rollouts(u64::MAX)).unwrap()));
        assert!(run.is_err());
        // Not a result that lacks what was lost.
        assert!(search.run(Budget::rollouts(10)).is_err());
    }
}

#[test]
fn whoever_is_told_and_panics_ends_the_phase_of_trees_apart() {
    let _watchdog = Watchdog::start();
    let settings = Settings { workers: 2, parallelism: Parallelism::Root, ..small() };
    let mut search = Search::new(board(7, ""), settings).unwrap();
    let run = catch_unwind(AssertUnwindSafe(|| {
        search.run_with(Budget::rollouts(u64::MAX), |_| panic!("it has heard enough")).unwrap()
    }));
    assert!(run.is_err());
    assert!(search.run(Budget::rollouts(10)).is_err());
}

#[test]
fn a_game_that_breaks_the_rules_ends_with_the_rule() {
    for (width, said) in [(0, "Game::moves: 0 moves"), (513, "Game::moves: 513 moves")] {
        for parallelism in [Parallelism::Tree, Parallelism::Root, Parallelism::Merged] {
            let game = Walk { width, ..Walk::default() };
            let mut search = Search::new(game, Settings { parallelism, ..small() }).unwrap();
            let run = catch_unwind(AssertUnwindSafe(|| search.run(Budget::rollouts(10))));
            let panic = run.expect_err("it is broken").downcast::<String>().unwrap();
            assert!(panic.starts_with(said) && panic.contains("from 1 to 512"), "{panic}");
        }
    }
}

#[test]
fn a_game_of_a_thousand_moves_is_searched_with_little_memory() {
    let _watchdog = Watchdog::start();
    let all = all_settings().into_iter().filter(|it| it.placement != Placement::Hash);
    for (settings, length) in all.zip([1_000, 60_000].into_iter().cycle()) {
        let memory = usize::from(settings.workers) * (hg_mcts::MEMORY_MIN + (64 << 10));
        let settings = Settings { memory, simulations: 1, ..settings };
        let game = Walk { width: 512, length, ..Walk::default() };
        let mut search = Search::new(game, settings.clone()).unwrap();
        let found = search.run(Budget::rollouts(600)).unwrap();
        assert_eq!((found.visits, found.proof), (600, None), "{settings:?}");
        balanced(&search);
    }
}

#[test]
fn where_all_positions_have_one_hash_a_search_ends_and_adds_up() {
    let _watchdog = Watchdog::start();
    for settings in all_settings().into_iter().filter(|it| it.placement == Placement::Hash) {
        let game = Walk { width: 3, length: 2_000, ..Walk::default() };
        let mut search = Search::new(game, settings).unwrap();
        assert_eq!(search.run(Budget::rollouts(300)).unwrap().last.rollouts, 300);
        balanced(&search);
    }
}

#[test]
#[should_panic(expected = "move 4 cannot be made")]
fn a_move_that_is_not_legal_is_not_made() {
    let mut search = Search::new(board(5, "e1"), small()).unwrap();
    search.advance(4);
}

#[test]
fn settings_out_of_bounds_are_refused_in_words() {
    let refused = |settings| Search::new(board(3, ""), settings).unwrap_err().to_string();
    let settings = Settings { workers: 0, ..Settings::default() };
    assert_eq!(refused(settings), "workers is 0, and must be from 1 to 65535");
    let settings = Settings { patience: Duration::from_millis(99), ..Settings::default() };
    assert!(refused(settings).ends_with("is 99, and must be 100 or more"));
    let settings = Settings { memory: 100, ..Settings::default() };
    assert!(refused(settings).ends_with("is 100, and must be 65536 or more"));
}
