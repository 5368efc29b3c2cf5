//! Searches by teams: several processes, each of them imitated by threads of this one with a domain of their own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "../../invoke/tests/common/meeting.rs"]
mod meeting;

use std::{thread, time::Duration};

use common::{all_settings, balanced, board, opening_wins, small};
use faulty::Faulty;
use hg_mcts::{
    Analysis, Budget, Game, Outcome, Parallelism, Placement, Player, Portable, Search, Settings,
    Team, TeamError, VirtualLoss, hex::Hex,
};
use meeting::{Meeting, Process};
use watchdog::Watchdog;

/// What has become of each process but the first one.
type Ended = Vec<thread::Result<Result<(), TeamError>>>;

/// Work of the first of so many processes, each with so many threads.
fn lead<G: Portable, T>(
    url: &str,
    (processes, threads): (u32, u8),
    work: impl FnOnce(&Team<G>) -> T,
) -> (T, Ended) {
    let meeting = Meeting::default();
    let meeting = &meeting;
    thread::scope(|scope| {
        let serving: Vec<_> = (1..processes)
            .map(|rank| {
                scope.spawn(move || {
                    let served = Team::<G>::open(&Process(rank, processes, meeting), threads, url);
                    served.map(|team| assert!(team.is_none(), "only the first one leads"))
                })
            })
            .collect();
        let team = Team::open(&Process(0, processes, meeting), threads, url).unwrap();
        let team = team.expect("the first one leads");
        let done = work(&team);
        drop(team);
        (done, serving.into_iter().map(thread::ScopedJoinHandle::join).collect())
    })
}

/// The same, where all goes well.
fn led<T>(url: &str, shape: (u32, u8), work: impl FnOnce(&Team<Hex>) -> T) -> T {
    let (done, ended) = lead(url, shape, work);
    for it in ended {
        it.expect("no panic").expect("no error");
    }
    done
}

/// All placements and virtual losses, and a tree each.
fn team_settings() -> Vec<Settings> {
    let mut all = all_settings();
    all.retain(|it| it.workers == 2);
    all.iter_mut().for_each(|it| it.window = 16);
    all
}

fn run(search: &mut Search<Hex>, rollouts: u64) -> Analysis {
    let found = search.run(Budget::rollouts(rollouts)).unwrap();
    assert!(found.proof.is_some() || found.last.rollouts == rollouts);
    balanced(search);
    found
}

/// Searches with each of these settings, by so many processes and threads of each.
fn openings(shape: (u32, u8), all: Vec<Settings>) {
    let _watchdog = Watchdog::start();
    led("sm://", shape, |team| {
        for settings in all {
            for (size, rollouts) in [(3, 2_000), (4, 8_000)] {
                let mut search = Search::by(team, board(size, ""), settings.clone()).unwrap();
                let found = run(&mut search, rollouts);
                let best = found.best.unwrap();
                assert!(opening_wins(size, best), "{size}: {found:?} by {settings:?}");
            }
            let mut search = Search::by(team, board(7, ""), settings.clone()).unwrap();
            for phase in 1..3 {
                let found = run(&mut search, 500);
                assert_eq!((found.last.rollouts, found.visits), (500, phase * 2_000));
                let visits: u64 = found.candidates.iter().map(|it| it.visits).sum();
                assert_eq!(visits, found.visits);
                let simulated: u64 = found.workers.iter().map(|it| it.simulations).sum();
                assert_eq!(simulated, 2_000, "{settings:?}");
                assert_eq!(found.workers.len(), shape.0 as usize * usize::from(shape.1));
                let talks = settings.parallelism != Parallelism::Root;
                assert!(found.workers.iter().all(|it| (it.bytes > 0) == talks));
            }
        }
    });
}

#[test]
fn two_processes_open_with_a_move_that_wins_in_every_way_of_searching_and_everything_adds_up() {
    openings((2, 1), team_settings());
}

#[test]
fn more_processes_and_threads_open_with_a_move_that_wins_by_each_placement() {
    let mut all = team_settings();
    all.retain(|it| it.virtual_loss == VirtualLoss::Unobserved);
    openings((3, 1), all.clone());
    openings((2, 2), all);
}

#[test]
fn two_processes_find_the_only_reply_that_wins_and_solve_a_board_of_three() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        for settings in team_settings() {
            let mut search = Search::by(team, board(3, "a1"), settings.clone()).unwrap();
            let best = run(&mut search, 5_000).best.unwrap();
            assert_eq!(search.position().format_move(best), "b2", "{settings:?}");
            let settings = Settings { simulations: 1, ..settings };
            let mut search = Search::by(team, board(3, ""), settings.clone()).unwrap();
            assert_eq!(run(&mut search, 50_000).proof, Some(Outcome::Won(Player::First)));
        }
    });
}

/// On a board of five, after an opening that loses, and by an opening that wins.
fn five_rows(which: impl Fn(&Settings) -> bool) {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        for mut settings in team_settings().into_iter().filter(which) {
            settings.window = 128;
            let mut search = Search::by(team, board(5, "a3"), settings.clone()).unwrap();
            let best = run(&mut search, 150_000).best.unwrap();
            assert_eq!(search.position().format_move(best), "b4", "{settings:?}");
            let mut search = Search::by(team, board(5, ""), settings.clone()).unwrap();
            let best = run(&mut search, 12_000).best.unwrap();
            assert!(opening_wins(5, best), "{best} by {settings:?}");
        }
    });
}

#[test]
fn two_processes_find_what_wins_on_a_board_of_five_by_each_placement() {
    five_rows(|it| {
        it.virtual_loss == VirtualLoss::Unobserved && it.parallelism == Parallelism::Tree
    });
}

#[test]
fn two_processes_find_what_wins_on_a_board_of_five_by_each_virtual_loss() {
    five_rows(|it| it.virtual_loss != VirtualLoss::Unobserved && it.placement == Placement::Hash);
}

#[test]
fn two_processes_with_a_tree_each_find_what_wins_on_a_board_of_five() {
    five_rows(|it| it.parallelism != Parallelism::Tree);
}

#[test]
fn two_processes_solve_a_board_of_four() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        let settings = Settings { simulations: 1, window: 128, ..small() };
        let mut search = Search::by(team, board(4, ""), settings).unwrap();
        let found = run(&mut search, 3_000_000);
        assert_eq!(found.proof, Some(Outcome::Won(Player::First)));
        assert!(opening_wins(4, found.best.unwrap()));
    });
}

#[test]
fn a_whole_game_is_played_on_one_tree_over_tcp() {
    let _watchdog = Watchdog::start();
    led("tcp://127.0.0.1", (2, 2), |team| {
        for settings in team_settings() {
            let mut search = Search::by(team, board(5, "").with_swap(), settings).unwrap();
            while let Some(best) = search.run(Budget::rollouts(200)).unwrap().best {
                assert!(search.position().is_legal(best));
                search.advance(best);
                let audit = search.audit().unwrap();
                assert_eq!((audit.under_way, audit.waiting), (0, 0));
            }
            let over = search.run(Budget::rollouts(300)).unwrap();
            assert_eq!((over.proof, over.last.rollouts), (search.position().outcome(), 0));
        }
    });
}

#[test]
fn two_searches_of_one_team_do_not_mix_and_tell_how_far_they_come() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        let mut one = Search::by(team, board(3, "a1"), small()).unwrap();
        let mut other = Search::by(team, board(5, ""), small()).unwrap();
        for round in 1..4 {
            run(&mut one, 500);
            assert_eq!(run(&mut other, 500).visits, round * 2_000);
        }
        // Whoever owns the root: the leader is told.
        for _ in 0..4 {
            let mut told = 0;
            let found = other.run_with(Budget::time(Duration::from_millis(30)), |_| told += 1);
            let found = found.unwrap();
            assert!(told > 0 && found.samples.len() >= 2, "{told} of {}", found.samples.len());
            assert!(!other.variation(3).is_empty());
            other.advance(found.best.unwrap());
        }
        drop(one);
        run(&mut other, 100);
    });
}

#[test]
fn while_a_search_tells_others_of_its_team_are_made_and_dropped_and_refused_a_phase() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 2), |team| {
        let mut one = Search::by(team, board(5, ""), small()).unwrap();
        for _ in 0..4 {
            let mut other = Some(Search::by(team, board(3, "a1"), small()).unwrap());
            let mut made = None;
            run(other.as_mut().unwrap(), 100);
            let found = one.run_with(Budget::rollouts(500), |_| {
                let Some(mut other) = other.take() else { return };
                let refused = other.run(Budget::rollouts(1)).unwrap_err();
                assert_eq!(refused.to_string(), "process 0 is searching");
                assert!(other.audit().is_err() && other.variation(3).is_empty());
                drop(other);
                made = Some(Search::by(team, board(4, ""), small()).unwrap());
            });
            run(&mut made.expect("it has told something"), 100);
            // Whoever owns the root next.
            one.advance(found.unwrap().best.unwrap());
        }
    });
}

#[test]
fn threads_with_searches_of_one_team_wait_for_each_other() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        thread::scope(|scope| {
            for size in [4, 5] {
                scope.spawn(move || {
                    for _ in 0..5 {
                        let mut search = Search::by(team, board(size, ""), small()).unwrap();
                        (0..5).for_each(|_| drop(run(&mut search, 20)));
                    }
                });
            }
        });
    });
}

#[test]
fn a_game_that_panics_in_one_process_ends_the_phase_in_all_and_names_it() {
    let _watchdog = Watchdog::start();
    for (processes, settings) in [(2, small()), (3, small())] {
        let (found, ended) = lead("sm://", (processes, 1), |team| {
            let position = Faulty { board: board(7, ""), odds: 0 };
            let mut search = Search::by(team, position, settings).unwrap();
            let found = search.run(Budget::default());
            assert_eq!(search.run(Budget::default()).map(drop), found.clone().map(drop));
            assert!(search.audit().is_err() && search.variation(3).is_empty());
            found
        });
        let gone = found.unwrap_err();
        assert!(gone.process > 0 && &*gone.why == "has panicked", "{gone}");
        for (rank, it) in (1..).zip(ended) {
            match it {
                Ok(Err(TeamError::Gone(other))) => assert_eq!(other, gone),
                Ok(other) => panic!("{rank}: {other:?}"),
                Err(_) => {}
            }
        }
    }
}

#[test]
fn settings_out_of_bounds_are_refused_before_anybody_is_asked() {
    let _watchdog = Watchdog::start();
    led("sm://", (2, 1), |team| {
        let settings = Settings { simulations: 0, ..small() };
        assert!(Search::by(team, board(3, ""), settings).is_err());
        let settings = Settings { placement: Placement::Hash, workers: 77, ..small() };
        let search = Search::by(team, board(3, ""), settings).unwrap();
        assert_eq!(search.settings().workers, 1);
    });
}
