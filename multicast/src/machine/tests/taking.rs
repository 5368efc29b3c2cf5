//! How blocks are offered and taken one after the other.

use super::{super::lane::Offered, *};

impl Machine<u64> {
    /// No more large blocks are on their way than may be, nor more that are nearly there; whether any of those has made room for one.
    pub(super) fn check_room(&self) -> bool {
        let is_large = |it: &&Offered| {
            self.header(it.object).is_some_and(|it| it.block_size.min(it.size) > INLINE_MAX)
        };
        let large: Vec<_> = self.stepped.offered().iter().filter(is_large).collect();
        let on_their_way = large.iter().filter(|it| !it.is_nearly_taken).count();
        let room = self.config.in_flight;
        assert!(on_their_way <= room && large.len() <= 2 * room, "{large:?}");
        large.len() > room
    }
}

/// What is offered to whom, and what was said to whom of blocks.
fn words(actions: Vec<Action<u64>>) -> Vec<(u32, &'static str, u64)> {
    let words = actions.into_iter().filter_map(|it| match it {
        Action::Offer { to, block, .. } => Some((to, "offer", block)),
        Action::Tell { to, message: Message::Nearly { block, .. } } => Some((to, "nearly", block)),
        Action::Tell { to, message: Message::Took { block, .. } } => Some((to, "took", block)),
        _ => None,
    });
    words.collect()
}

#[test]
fn the_next_block_is_offered_while_the_end_of_the_one_before_comes_and_no_further_one() {
    let mut root = Machine::<u64>::new(Config { own: 0, ..relay().config }, Carried::default());
    let says = |root: &mut Machine<u64>, from, message| {
        root.handle(Event::Message { from, message });
        words(done_by(root))
    };
    for from in [1, 2] {
        says(&mut root, from, Message::Join { digest: 0, whole: 0 });
    }
    root.send(Choice::Chain, (200_000, 50_000), true, Vec::new());
    assert_eq!(words(done_by(&mut root)), [(1, "offer", 0)]);
    let (nearly, took) =
        (|block| Message::Nearly { object: 0, block }, |block| Message::Took { object: 0, block });
    assert_eq!(says(&mut root, 1, nearly(0)), [(1, "offer", 1)]);
    assert_eq!(says(&mut root, 1, nearly(0)), [], "that was said");
    assert_eq!(says(&mut root, 1, nearly(1)), [], "neither of two has come whole");
    assert_eq!(says(&mut root, 1, took(0)), [(1, "offer", 2)]);
    assert_eq!(says(&mut root, 1, took(1)), []);
    assert_eq!(says(&mut root, 1, took(2)), [(1, "offer", 3)], "who says nothing before");
    says(&mut root, 1, nearly(2));
    assert!(root.is_over(), "it has come");
}

#[test]
fn who_takes_a_block_says_so_twice_and_pulls_the_next_one_once_it_is_whole() {
    let mut machine = relay();
    for block in 0..2 {
        let header = (block == 0).then(|| Header {
            size: 1_000_000,
            block_size: 500_000,
            ..header_of_two(Kind::Chain)
        });
        let message = Message::Offer { object: 0, block, header, source: 0 };
        machine.handle(Event::Message { from: 0, message });
    }
    machine.handle(Event::Ready { object: 0, bytes: 1_000_000 });
    let pulled = |actions: &[Action<u64>]| {
        actions.iter().filter(|it| matches!(it, Action::Pull { .. })).count()
    };
    assert_eq!(pulled(&done_by(&mut machine)), 1);
    machine.handle(Event::Nearly { object: 0, block: 0 });
    let actions = done_by(&mut machine);
    assert_eq!((pulled(&actions), words(actions)), (0, vec![(0, "nearly", 0)]), "one at a time");
    machine.handle(Event::Arrived { object: 0, block: 0 });
    let actions = done_by(&mut machine);
    let said = vec![(0, "took", 0), (2, "offer", 0)];
    assert_eq!((pulled(&actions), words(actions)), (1, said));
    machine.handle(Event::Nearly { object: 0, block: 0 });
    assert_eq!(words(done_by(&mut machine)), [], "it is here");
}

/// Both come in one round.
#[test]
fn nobody_is_asked_for_a_place_in_a_group_that_has_failed_meanwhile() {
    let mut machine = relay();
    let header = Some(header_of_two(Kind::Chain));
    let message = Message::Offer { object: 0, block: 0, header, source: 0 };
    machine.handle(Event::Message { from: 0, message });
    let message = Message::Failed { member: 2, why: "it is gone".to_owned() };
    machine.handle(Event::Message { from: 0, message });
    let actions = done_by(&mut machine);
    assert!(actions.iter().any(|it| matches!(it, Action::Failed { .. })), "{actions:?}");
    assert!(!actions.iter().any(|it| matches!(it, Action::Prepare { .. })), "{actions:?}");
}
