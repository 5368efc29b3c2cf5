//! The hub's state machine under every order of events that matters.

use super::state::{Effect, Hub};
use crate::frame::{Broken, Down, Hello, Up, What};

fn hello(rank: u32, host: &str) -> Hello {
    Hello { token: b"t".to_vec(), rank, size: 3, host: host.into() }
}

fn effects(hub: &mut Hub) -> Vec<Effect> {
    std::iter::from_fn(|| hub.poll_effect()).collect()
}

/// Three ranks on two hosts, welcomed.
fn together() -> Hub {
    let mut hub = Hub::star(3, b"t".to_vec());
    for (rank, host) in [(2, "b"), (0, "a"), (1, "b")] {
        assert_eq!(hub.handle_hello(hello(rank, host)), Ok(rank));
    }
    assert_eq!(effects(&mut hub), [Effect::All(Down::Welcome { nodes: vec![0, 1, 1] })]);
    hub
}

fn gather(number: u64, value: u8) -> Up {
    Up::Gather { channel: "c".into(), number, what: What::Gather, values: vec![vec![value]] }
}

fn barrier(number: u64) -> Up {
    Up::Gather { channel: "c".into(), number, what: What::Barrier, values: vec![] }
}

fn broken(hub: &mut Hub) -> Broken {
    match effects(hub).pop() {
        Some(Effect::All(Down::Broken(broken))) => broken,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_come_back_in_the_order_of_ranks_whoever_came_first() {
    let mut hub = together();
    for (number, order) in [[2, 0, 1], [0, 1, 2]].into_iter().enumerate() {
        let number = number as u64;
        for rank in order {
            assert_eq!(effects(&mut hub), []);
            hub.handle(rank, gather(number, u8::try_from(rank).unwrap())).unwrap();
        }
        let values = vec![vec![0], vec![1], vec![2]];
        assert_eq!(
            effects(&mut hub),
            [Effect::All(Down::Gathered { channel: "c".into(), number, values })]
        );
    }
}

#[test]
fn channels_do_not_wait_for_one_another() {
    let mut hub = together();
    let on = |channel: &str| Up::Gather {
        channel: channel.into(),
        number: 0,
        what: What::Barrier,
        values: vec![],
    };
    for (rank, channel) in [(0, "x"), (1, "y"), (2, "x"), (0, "y"), (2, "y")] {
        hub.handle(rank, on(channel)).unwrap();
    }
    let done = Down::Gathered { channel: "y".into(), number: 0, values: vec![] };
    assert_eq!(effects(&mut hub), [Effect::All(done)]);
}

#[test]
fn a_deadline_names_who_never_came_and_a_latecomer_hears_it() {
    let mut hub = Hub::star(3, b"t".to_vec());
    hub.handle_hello(hello(1, "a")).unwrap();
    hub.handle_deadline();
    assert_eq!(broken(&mut hub), Broken::NeverCame { ranks: vec![0, 2] });
    hub.handle_hello(hello(2, "a")).unwrap();
    let told = Down::Broken(Broken::NeverCame { ranks: vec![0, 2] });
    assert_eq!(effects(&mut hub), [Effect::One(2, told)]);
}

#[test]
fn strangers_are_refused_with_a_sentence() {
    let mut hub = together();
    let mut wrong = hello(1, "a");
    assert_eq!(
        hub.handle_hello(wrong.clone()).unwrap_err(),
        "two processes say that they are rank 1"
    );
    wrong.rank = 3;
    assert_eq!(hub.handle_hello(wrong.clone()).unwrap_err(), "there is no rank 3 among 3");
    wrong.size = 4;
    assert_eq!(hub.handle_hello(wrong.clone()).unwrap_err(), "rank 3 was told 4 ranks, rank 0 3");
    wrong.token = b"u".to_vec();
    assert_eq!(hub.handle_hello(wrong).unwrap_err(), "this is another job: the tokens differ");
    assert_eq!(effects(&mut hub), []);
}

#[test]
fn a_lost_rank_is_told_to_everybody_and_to_every_later_call() {
    let mut hub = together();
    hub.handle(0, gather(0, 0)).unwrap();
    hub.handle_hang_up(2);
    assert_eq!(broken(&mut hub), Broken::Lost { rank: 2 });
    hub.handle(1, gather(0, 1)).unwrap();
    let told = Down::Broken(Broken::Lost { rank: 2 });
    assert_eq!(effects(&mut hub), [Effect::One(1, told)]);
    assert!(!hub.is_over());
    hub.handle_hang_up(0);
    hub.handle_hang_up(1);
    assert_eq!(effects(&mut hub), []);
    assert!(hub.is_over());
}

#[test]
fn a_rank_that_contributed_may_go_before_the_others_have() {
    let mut hub = together();
    for rank in 0..3 {
        hub.handle(rank, gather(0, 9)).unwrap();
    }
    hub.handle(2, Up::Bye).unwrap();
    hub.handle_hang_up(2);
    assert!(matches!(effects(&mut hub)[..], [Effect::All(Down::Gathered { .. })]));
    hub.handle(0, Up::Bye).unwrap();
    assert!(!hub.is_over());
    hub.handle(1, Up::Bye).unwrap();
    assert!(hub.is_over());
    assert_eq!(hub.broken(), None);
}

#[test]
fn calling_after_somebody_left_is_an_error() {
    let mut hub = together();
    hub.handle(2, Up::Bye).unwrap();
    hub.handle(0, barrier(0)).unwrap();
    assert_eq!(broken(&mut hub), Broken::Left { rank: 2 });
}

#[test]
fn leaving_while_others_wait_is_an_error() {
    let mut hub = together();
    hub.handle(0, barrier(0)).unwrap();
    hub.handle(2, Up::Bye).unwrap();
    let why = "rank 2 left where rank 0 called barrier".into();
    assert_eq!(broken(&mut hub), Broken::Disagree { why });
}

#[test]
fn different_calls_are_a_disagreement_that_names_both() {
    let mut hub = together();
    hub.handle(1, barrier(0)).unwrap();
    hub.handle(0, gather(0, 1)).unwrap();
    let why = "rank 0 called all-gather where rank 1 called barrier".into();
    assert_eq!(broken(&mut hub), Broken::Disagree { why });

    let mut hub = together();
    hub.handle(1, barrier(1)).unwrap();
    let why = "rank 1 is at call 1 of `c`, others at 0".into();
    assert_eq!(broken(&mut hub), Broken::Disagree { why });

    let mut hub = together();
    hub.handle(1, barrier(0)).unwrap();
    hub.handle(1, barrier(0)).unwrap();
    let why = "rank 1 called barrier number 0 of `c` twice".into();
    assert_eq!(broken(&mut hub), Broken::Disagree { why });
}

#[test]
fn an_abort_is_told_even_after_a_loss() {
    let mut hub = together();
    hub.handle_hang_up(1);
    hub.handle(0, Up::Abort { code: 4, why: "no use".into() }).unwrap();
    let aborted = Broken::Aborted { by: 0, code: 4, why: "no use".into() };
    assert_eq!(broken(&mut hub), aborted);
}

#[test]
fn an_abort_hides_the_first_reason_from_nobody() {
    let mut hub = Hub::star(3, b"t".to_vec());
    hub.handle_hello(hello(0, "a")).unwrap();
    hub.handle_hang_up(1);
    hub.handle(0, Up::Abort { code: 4, why: "no use".into() }).unwrap();
    let aborted = Broken::Aborted { by: 0, code: 4, why: "no use".into() };
    let told = [Broken::Early { rank: 1 }, aborted].map(Down::Broken);
    assert_eq!(effects(&mut hub), told.clone().map(Effect::All));
    assert_eq!(hub.broken(), Some(&Broken::Early { rank: 1 }));
    // Who comes later hears both, in that order.
    hub.handle_hello(hello(2, "a")).unwrap();
    assert_eq!(effects(&mut hub), told.map(|down| Effect::One(2, down)));
}

#[test]
fn who_is_missing_can_be_asked() {
    let mut hub = together();
    hub.handle(1, barrier(0)).unwrap();
    hub.handle(1, Up::Who { channel: "c".into(), number: 0 }).unwrap();
    let ranks = vec![0, 2];
    let told = Down::Missing { channel: "c".into(), number: 0, ranks };
    assert_eq!(effects(&mut hub), [Effect::One(1, told)]);
}

#[test]
fn a_second_hello_costs_the_connection() {
    let mut hub = together();
    assert_eq!(hub.handle(1, Up::Hello(hello(1, "a"))), Err(()));
}

#[test]
fn a_seat_that_hangs_up_before_it_spoke_ends_the_waiting() {
    let mut hub = Hub::star(3, b"t".to_vec());
    hub.handle_hello(hello(0, "a")).unwrap();
    hub.handle_hang_up(1);
    assert_eq!(broken(&mut hub), Broken::Early { rank: 1 });
    hub.handle_hang_up(0);
    assert!(!hub.is_over(), "rank 2 may come and ask");
    hub.handle_hang_up(2);
    assert!(hub.is_over());
}
