//! A process that lies to its team.

#[path = "../../../invoke/tests/common/meeting.rs"]
mod meeting;

use meeting::{Meeting, Process};
use proptest::prelude::*;
use watchdog::Watchdog;

use super::{
    member::few,
    post::{self, Answer, Begin, LEADER, Order, Post, Word},
    *,
};
use crate::{
    Budget, CHILDREN_MAX, Parallelism, Placement, Player, Search, WorkerStats,
    hex::Hex,
    stats::{Audit, Part, Progress, Sum, Sums},
    wire,
};

/// The post of one of two processes.
fn post_of(rank: u32, meeting: &Meeting, url: &str) -> Post {
    post_of_fabric(Fabric::new(), rank, meeting, url)
}

fn post_of_fabric(fabric: Fabric, rank: u32, meeting: &Meeting, url: &str) -> Post {
    let fabric = fabric.register(post::deliver).unwrap();
    let fabric = fabric.register(post::hear).unwrap().queue_max(post::WAITING_MAX);
    let here = fabric.open(&Process(rank, 2, meeting), url).unwrap().remove(0);
    Post::new(here, 1)
}

/// The second of two processes.
fn liar(meeting: &Meeting) -> Post {
    let mut post = post_of(1, meeting, "sm://");
    post.say(LEADER, Word::Hello).unwrap();
    post
}

/// What the first process finds when the other one answers the start of a phase like this, and then waits for the end.
fn told(lie: impl FnOnce(&mut Post, &Begin) -> Result<(), Gone> + Send) -> String {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let mut post = liar(&meeting);
            let begin = post.wait(|inbox| match inbox.orders.pop_front() {
                Some(Order::Begin(begin)) => Some(begin),
                _ => None,
            });
            // The other one may have ended in the middle of it.
            let _ = lie(&mut post, &begin.unwrap());
            let ended: Result<(), Gone> = post.wait(|_| None);
            ended.unwrap_err()
        });
        let team = Team::open(&Process(0, 2, &meeting), 1, "sm://").unwrap().unwrap();
        let settings = Settings {
            simulations: 4,
            placement: Placement::Hash,
            parallelism: Parallelism::Tree,
            ..Settings::default()
        };
        let mut search = Search::by(&team, Hex::new(4).unwrap(), settings).unwrap();
        let gone = search.run(Budget::default()).unwrap_err();
        assert_eq!(gone.process, 1);
        assert_eq!(liar.join().unwrap(), gone, "it is told, too");
        gone.to_string()
    })
}

/// Of one phase.
fn batch(begin: &Begin, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::Head { phase: begin.phase, load: 0 }.write(&mut bytes);
    bytes.extend(rest);
    bytes
}

#[test]
fn a_process_that_sends_what_makes_no_sense_ends_the_team_by_name() {
    let deliver = |rest: &'static [u8]| {
        told(|post, begin| {
            post.deliver(LEADER, &batch(begin, rest))?;
            post.flush();
            Ok(())
        })
    };
    assert_eq!(deliver(&[77]), "process 1 has sent bytes that are no messages");
    assert_eq!(deliver(&[2]), "process 1 has ended a phase that another one leads");
    // A selection of one rollout, by a child 0 of a node of worker 1: on a board of four there is no move 99; then 3.
    let ninety_nine = [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 99, 0, 1, 0];
    assert_eq!(
        deliver(Box::leak(Box::new(ninety_nine))),
        "process 1 has sent a move that cannot be made"
    );
    let not_its_own = [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
    let why = "process 1 has sent rollouts by a path that is not its own";
    assert_eq!(deliver(Box::leak(Box::new(not_its_own))), why);
    // A report of a rollout to a node that there is not: 4 simulations.
    let unasked = [4, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 9, 9, 0, 0, 0, 0, 3, 0, 0, 0];
    let why = "process 1 has reported rollouts that it was not sent";
    assert_eq!(deliver(Box::leak(Box::new(unasked))), why);
    let five = [4, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 9, 9, 0, 0, 0, 0, 3, 0, 0, 0];
    assert_eq!(deliver(Box::leak(Box::new(five))), "process 1 has reported what cannot be");
}

#[test]
fn a_process_that_says_what_is_not_its_to_say_ends_the_team_by_name() {
    let order = told(|post, _| post.say(LEADER, Word::Order(Order::End)));
    assert_eq!(order, "process 1 has given orders that are not its to give");
    let flood = told(|post, begin| {
        loop {
            post.deliver(LEADER, &batch(begin, &[2; 4000]))?;
            post.flush();
        }
    });
    assert!(flood.starts_with("process 1 has "), "{flood}");
}

#[test]
fn a_line_of_moves_has_none_that_cannot_be_made() {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut post = liar(&meeting);
            loop {
                let answer = match post.wait(|inbox| inbox.orders.pop_front()).unwrap() {
                    Order::Begin(_) => {
                        let (stats, samples) = (WorkerStats::default(), Vec::new());
                        Answer::Part(Part { stats, root: None, counted: 0, proven: None, samples })
                    }
                    Order::Look { .. } => {
                        let (visits, score, proof) = (1 << 40, 0, None);
                        let child = Sum { mv: 5_000, owner: 0, visits, score, proof };
                        Answer::Look(Some(Sums { visits, children: vec![child] }))
                    }
                    Order::Audit { .. } => continue,
                    Order::End => Answer::Ended,
                    Order::Leave => break,
                };
                post.say(LEADER, Word::Answer(answer)).unwrap();
            }
            post.finish();
        });
        let team = Team::open(&Process(0, 2, &meeting), 1, "sm://").unwrap().unwrap();
        let settings = Settings { parallelism: Parallelism::Root, ..Settings::default() };
        let mut search = Search::by(&team, Hex::new(4).unwrap(), settings).unwrap();
        assert!(search.run(Budget::rollouts(100)).unwrap().best.is_some());
        assert!(search.variation(3).is_empty());
    });
}

proptest! {
    #[test]
    fn positions_of_hex_are_read_again_and_others_refused(
        size in 2_u8..20, swap: bool, moves: Vec<u16>, bytes: Vec<u8>,
    ) {
        let mut board = Hex::new(size).unwrap();
        if swap {
            board = board.with_swap();
        }
        for mv in moves {
            let mv = mv % (u16::from(size) * u16::from(size) + 1);
            let mv = if mv == u16::from(size) * u16::from(size) { crate::hex::SWAP } else { mv };
            if board.is_legal(mv) {
                crate::Game::play(&mut board, mv);
            }
        }
        let written = board.to_bytes();
        prop_assert_eq!(Hex::from_bytes(&written), Some(board.clone()));
        prop_assert_eq!(Hex::from_bytes(&written[1..]), None);
        if let Some(read) = Hex::from_bytes(&bytes) {
            prop_assert!(crate::Game::turn(&read) == Player::First || bytes[1] == 1);
        }
    }
}

#[test]
fn a_process_that_gets_no_thread_says_so_before_anybody_waits_for_it() {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    for (rank, left) in [(0, 0), (0, 1), (1, 2)] {
        crate::crew::tests::allow(left);
        let opened = Team::<Hex>::open(&Process(rank, 2, &meeting), 3, "sm://");
        crate::crew::tests::allow(usize::MAX);
        let error = opened.expect_err("a thread is missing").to_string();
        assert!(error.starts_with("cannot start a thread ("), "{error}");
    }
}

/// The second of two processes, which has found nothing whenever it is asked: the searches that it was told are over.
fn idle(mut post: Post) -> Vec<u32> {
    loop {
        let answer = match post.wait(|inbox| inbox.orders.pop_front()).unwrap() {
            Order::Begin(_) => {
                let (stats, samples) = (WorkerStats::default(), Vec::new());
                Answer::Part(Part { stats, root: None, counted: 0, proven: None, samples })
            }
            Order::Look { .. } => Answer::Look(None),
            Order::Audit { .. } => Answer::Audit(Audit::default()),
            Order::End => Answer::Ended,
            Order::Leave => break,
        };
        post.say(LEADER, Word::Answer(answer)).unwrap();
    }
    let closed = std::mem::take(&mut post.inbox.closed);
    post.finish();
    closed
}

/// A tree each.
fn apart() -> Settings {
    Settings { parallelism: Parallelism::Root, ..Settings::default() }
}

#[test]
fn a_search_that_ends_while_another_one_tells_is_over_in_all_processes() {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    thread::scope(|scope| {
        let serving = scope.spawn(|| idle(liar(&meeting)));
        let team = Team::open(&Process(0, 2, &meeting), 1, "sm://").unwrap().unwrap();
        let new = || Search::by(&team, Hex::new(4).unwrap(), apart()).unwrap();
        let (mut search, mut other) = (new(), Some(new()));
        search.run_with(Budget::rollouts(100), |_| drop(other.take())).unwrap();
        assert!(other.is_none() && search.audit().is_ok());
        drop(team);
        assert_eq!(serving.join().unwrap(), [2]);
    });
}

#[test]
fn a_team_that_is_dropped_while_a_search_tells_lets_the_others_go_when_that_phase_is_over() {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    thread::scope(|scope| {
        let serving = scope.spawn(|| Team::<Hex>::open(&Process(1, 2, &meeting), 2, "sm://"));
        let team = Team::open(&Process(0, 2, &meeting), 2, "sm://").unwrap().unwrap();
        let mut search = Search::by(&team, Hex::new(4).unwrap(), apart()).unwrap();
        let mut team = Some(team);
        search.run_with(Budget::rollouts(100), |_| drop(team.take())).unwrap();
        assert!(team.is_none() && serving.join().unwrap().unwrap().is_none());
        let gone = search.run(Budget::rollouts(1)).unwrap_err();
        assert_eq!(gone.to_string(), "process 0 has let its team go");
    });
}

#[test]
fn any_number_of_searches_may_end_while_a_process_stands_still() {
    const SEARCHES: u32 = 20_000;
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    let url = "tcp://127.0.0.1";
    let (mut leader, mut serving) = thread::scope(|scope| {
        let serving = scope.spawn(|| post_of(1, &meeting, url));
        (post_of(0, &meeting, url), serving.join().unwrap())
    });
    for search in 0..SEARCHES {
        leader.say(1, Word::Close { search }).unwrap();
    }
    let mut closed = Vec::new();
    while closed.len() < SEARCHES as usize {
        // As much leaves as there is room for, before the other one looks again.
        (0..100).for_each(|_| leader.progress().unwrap());
        serving.progress().unwrap();
        closed.append(&mut serving.inbox.closed);
    }
    assert!(closed.into_iter().eq(0..SEARCHES));
}

/// Messages of over 16 KiB with their heads (16 bytes) fit through no channel here: its longest record takes half of a window.
#[test]
fn the_longest_part_of_a_phase_fits_in_a_message_of_any_transport() {
    let (meeting, _watchdog) = (Meeting::default(), Watchdog::start());
    let narrow = || Fabric::new().limits(Limits::default().window(2 * (16 << 10)));
    let [mut leader, mut serving] = thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                let meeting = &meeting;
                scope.spawn(move || post_of_fabric(narrow(), rank, meeting, "sm://"))
            })
            .map(|it| it.join().unwrap())
    });
    let sum = |mv| Sum { mv, owner: 0, visits: 0, score: 0, proof: None };
    let children = (0..CHILDREN_MAX).map(|mv| sum(u16::try_from(mv).unwrap())).collect();
    let samples = few(vec![Progress::default(); 399]);
    let (stats, root) = (WorkerStats::default(), Some(Sums { visits: 0, children }));
    let part = Part { stats, root, counted: 0, proven: None, samples };
    thread::scope(|scope| {
        scope.spawn(|| {
            serving.say(LEADER, Word::Answer(Answer::Part(part))).unwrap();
            serving.finish();
        });
        leader.wait(|inbox| inbox.answers[1].take()).unwrap();
        leader.finish();
    });
}
