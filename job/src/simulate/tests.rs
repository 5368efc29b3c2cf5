//! What a tree of hubs promises, whatever the order in which its frames are handled.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::frame::Broken;

/// Of each rank its peers: symmetric, and at random.
fn peers(size: u32, pairs: &BTreeSet<(u32, u32)>) -> Vec<BTreeSet<u32>> {
    let mut peers = vec![BTreeSet::new(); size as usize];
    for (one, other) in pairs.iter().map(|(one, other)| (one % size, other % size)) {
        if one != other {
            peers[one as usize].insert(other);
            peers[other as usize].insert(one);
        }
    }
    peers
}

fn up(run: &mut Simulation, rank: u32, up: Up) {
    run.say(rank, run.parents[rank as usize], up);
}

fn barrier(number: u64) -> Up {
    Up::Gather { channel: "c".into(), number, what: What::Barrier, values: vec![] }
}

/// Each rank was told the same, once.
fn all_were_told(run: &Simulation, broken: &Broken) -> Result<(), TestCaseError> {
    let mut ranks: Vec<u32> = run.told.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    prop_assert_eq!(ranks, (0..run.size).collect::<Vec<_>>());
    for (_, down) in &run.told {
        prop_assert_eq!(down, &Down::Broken(broken.clone()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn all_join_share_and_exchange_with_whom_they_name_and_nobody_else(
        size in 1_u32..2500, seed in any::<u64>(), per_host in 1_u32..70,
        pairs in prop::collection::btree_set((0_u32..2500, 0_u32..2500), 0..200),
    ) {
        let mut run = Simulation::join(size, seed, |rank| rank / per_host);
        prop_assert_eq!(run.nodes(), size.div_ceil(per_host));
        run.share(b"secret");
        prop_assert_eq!(run.ended(), u64::from(size));
        let peers = peers(size, &pairs);
        run.exchange(b"address", |rank| peers[rank as usize].iter().copied().collect());
        for (came, peers) in run.came().iter().zip(&peers) {
            prop_assert_eq!(*came as usize, peers.len());
        }
        prop_assert!(run.told.is_empty(), "{:?}", run.told);
        let most = run.loads().iter().map(|load| load.connections).max().unwrap();
        prop_assert!(most <= 33, "{} connections", most);
    }

    #[test]
    fn what_each_process_sends_and_holds_is_within_what_was_expected(
        size in 1_u32..2500, seed in any::<u64>(), per_host in 1_u32..70, value in 0_usize..40_000,
        pairs in prop::collection::btree_set((0_u32..2500, 0_u32..2500), 0..400),
    ) {
        let mut run = Simulation::join(size, seed, |rank| rank / per_host);
        run.share(&[0; 48]);
        let peers = peers(size, &pairs);
        let peers = |rank: u32| peers[rank as usize].iter().copied().collect::<Vec<_>>();
        run.exchange(&vec![0; value], peers);
        let nodes: Vec<u32> = (0..size).map(|rank| rank / per_host).collect();
        let runs = |rank| Run::of(&peers(rank));
        let start = Start { nodes: &nodes, shared: 48, value, peers: &runs };
        let ranks: Vec<u32> = (0..size).collect();
        for (rank, (load, expected)) in run.loads().iter().zip(start.expected(&ranks)).enumerate() {
            prop_assert_eq!((load.connections, load.letters), (expected.connections, expected.letters));
            let is_within = expected.frames.contains(load.frames) && expected.bytes.contains(load.bytes)
                && load.waiting <= expected.waiting && load.held <= expected.held;
            prop_assert!(is_within, "rank {}: {:?}, {:?}", rank, load, expected);
        }
    }

    #[test]
    fn a_death_anywhere_is_told_to_every_rank_once(
        size in 2_u32..2500, seed in any::<u64>(), at in any::<prop::sample::Index>(),
    ) {
        let mut run = Simulation::join(size, seed, |_| 0);
        let rank = u32::try_from(at.index(size as usize)).unwrap();
        // Its own seat, if it has a hub: that knows it first. It is told, too: nobody is there to hear.
        let through = run.parents[rank as usize];
        run.hubs.get_mut(&through).unwrap().handle_hang_up(rank);
        run.carry_out(through);
        run.settle();
        all_were_told(&run, &Broken::Lost { rank })?;
    }

    #[test]
    fn a_rank_that_takes_nothing_in_holds_values_back_in_bounded_memory_and_no_abort(
        size in 40_u32..1500, seed in any::<u64>(), at in any::<[prop::sample::Index; 2]>(),
    ) {
        let mut run = Simulation::join(size, seed, |_| 0);
        let [stopped, aborts] = at.map(|at| u32::try_from(at.index(size as usize)).unwrap());
        let through = run.parents[stopped as usize];
        run.hubs.get_mut(&through).unwrap().handle_room(stopped, false);
        // All of it is for that rank, and twenty times what one side may have waiting.
        let value = vec![0; (80 << 20) / size as usize];
        run.exchange(&value, |rank| if rank == stopped { vec![] } else { vec![stopped] });
        prop_assert_eq!(run.came()[stopped as usize], 0);
        for hub in run.hubs.values() {
            let most = hub.waiting_values();
            prop_assert!(most <= (4 << 20) + (256 << 10) + 2 * value.len(), "{} bytes wait", most);
        }
        up(&mut run, aborts, Up::Abort { code: 3, why: "so".into() });
        run.settle();
        all_were_told(&run, &Broken::Aborted { by: aborts, code: 3, why: "so".into() })?;
    }

    #[test]
    fn an_abort_anywhere_is_told_to_every_rank_once(
        size in 2_u32..2500, seed in any::<u64>(), at in any::<prop::sample::Index>(),
    ) {
        let mut run = Simulation::join(size, seed, |_| 0);
        let rank = u32::try_from(at.index(size as usize)).unwrap();
        up(&mut run, rank, Up::Abort { code: 3, why: "so".into() });
        run.settle();
        all_were_told(&run, &Broken::Aborted { by: rank, code: 3, why: "so".into() })?;
    }

    #[test]
    fn whom_a_call_waits_for_is_told_whole(
        size in 2_u32..2500, seed in any::<u64>(), asks in any::<prop::sample::Index>(),
        missing in prop::collection::btree_set(0_u32..2500, 1..9),
    ) {
        let mut run = Simulation::join(size, seed, |_| 0);
        let asks = u32::try_from(asks.index(size as usize)).unwrap();
        let missing: BTreeSet<u32> =
            missing.into_iter().map(|rank| rank % size).filter(|rank| *rank != asks).collect();
        prop_assume!(!missing.is_empty());
        for rank in (0..size).filter(|rank| !missing.contains(rank)) {
            up(&mut run, rank, barrier(0));
        }
        run.settle();
        prop_assert_eq!(run.ended(), 0);
        up(&mut run, asks, Up::Who { channel: "c".into(), number: 0 });
        run.settle();
        let ranks = missing.iter().copied().collect();
        let told = Down::Missing { channel: "c".into(), number: 0, ranks };
        prop_assert_eq!(std::mem::take(&mut run.told), vec![(asks, told)]);
        for rank in missing {
            up(&mut run, rank, barrier(0));
        }
        run.settle();
        prop_assert_eq!(run.ended(), u64::from(size));
    }

    #[test]
    fn a_call_after_somebody_left_is_an_error_everywhere(
        size in 2_u32..1500, seed in any::<u64>(), at in any::<prop::sample::Index>(),
    ) {
        let mut run = Simulation::join(size, seed, |_| 0);
        let leaver = u32::try_from(at.index(size as usize)).unwrap();
        up(&mut run, leaver, Up::Bye);
        run.settle();
        for rank in (0..size).filter(|rank| *rank != leaver) {
            up(&mut run, rank, barrier(0));
        }
        run.settle();
        let broken = run.told.iter().map(|(rank, _)| *rank).collect::<BTreeSet<_>>();
        prop_assert_eq!(broken.len(), size as usize);
        prop_assert_eq!(run.ended(), 0);
    }

    #[test]
    fn all_leave_and_every_hub_is_over(size in 1_u32..1500, seed in any::<u64>()) {
        let mut run = Simulation::join(size, seed, |_| 0);
        for rank in 0..size {
            up(&mut run, rank, Up::Bye);
        }
        run.settle();
        // Each hub says goodbye when its ranks have.
        for hub in run.hubs.keys().copied().rev().filter(|hub| *hub > 0).collect::<Vec<_>>() {
            prop_assert!(run.hubs[&hub].is_over());
            run.say(hub, Branch::of(hub, size).parent.unwrap(), Up::Bye);
            run.settle();
        }
        prop_assert!(run.hubs[&0].is_over());
        prop_assert!(run.told.is_empty());
    }
}

#[test]
fn a_hub_is_cut_off_that_speaks_for_others_ranks() {
    let (size, mut run) = (200, Simulation::join(200, 1, |_| 0));
    let hub = run.hubs.get_mut(&0).unwrap();
    let child = hub.child_ranks().find(|rank| hub.is_hub(*rank)).unwrap();
    let letter = |from: u32, to: u32| {
        let to = vec![Run { first: to, step: 1, count: 1 }];
        let letters = vec![Letter { from, to, value: [1].into() }];
        Up::Post(Post { channel: "c".into(), number: 0, letters })
    };
    let strange = [
        letter(0, 5),
        letter(child, size),
        Up::Left { rank: 0 },
        Up::Hosts(vec![("h".into(), size)]),
        Up::Gather { channel: "c".into(), number: 0, what: What::Gather, values: vec![vec![]] },
    ];
    for strange in strange {
        assert_eq!(hub.handle(child, strange.clone()), Err(()), "{strange:?}");
    }
    // Rank 0 itself is no hub there.
    for of_hubs in [Up::Left { rank: 0 }, Up::Broken(Broken::Lost { rank: 2 }), Up::Hosts(vec![])] {
        assert_eq!(hub.handle(0, of_hubs.clone()), Err(()), "{of_hubs:?}");
    }
    assert_eq!(hub.poll_effect(), None);
}

/// All speak before anybody is heard: what comes from several parts waits together.
#[test]
fn what_waits_for_a_hub_is_of_all_its_parts_at_a_time() {
    let size = 1 + 3 * 1057;
    let value = [7; 4096];
    // Ranks of the first so many parts give something to rank 0.
    let waiting =
        |speaking: u32| {
            let mut run = Simulation::join(size, 1, |_| 0);
            let before = run.loads()[0].waiting;
            run.exchange(&value, |rank| {
                if (1..=speaking * 1057).contains(&rank) { vec![0] } else { vec![] }
            });
            let most = run.loads()[0].waiting;
            assert!(most > before, "{most} bytes, {before} of those who join");
            most
        };
    let (one, three) = (waiting(1), waiting(3));
    assert!(three > 2 * one, "{three} bytes of three parts, {one} of one");
}
