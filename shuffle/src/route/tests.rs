//! Routes over any topology.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::Options;

/// The ranks that a message passes, source first; each with the way by which it came.
fn path(map: &Arc<NodeMap>, from: u32, to: u32) -> Vec<(u32, Came)> {
    let (mut at, mut came) = (from, Came::FromHere);
    let mut path = vec![(at, came)];
    loop {
        let routes = Routes::new(Arc::clone(map), at);
        (at, came) = match routes.next(came, to).unwrap() {
            Next::Deliver => return path,
            Next::Origin { rank } => (rank, Came::FromNode),
            Next::Network { rank, .. } => (rank, Came::FromNetwork),
            Next::Relay { rank } => (rank, Came::Relayed),
        };
        path.push((at, came));
        assert!(path.len() <= 4, "{path:?}");
    }
}

/// Any number of nodes and ranks, in any order.
fn topology() -> impl Strategy<Value = Arc<NodeMap>> {
    (1..8u32).prop_flat_map(|nodes| prop::collection::vec(0..nodes, 1..40)).prop_map(
        |mut node_of| {
            // Numbered without gaps.
            let used: BTreeSet<u32> = node_of.iter().copied().collect();
            for node in &mut node_of {
                *node = (0..).zip(&used).find(|(_, other)| *other == node).unwrap().0;
            }
            Arc::new(NodeMap::new(node_of).unwrap())
        },
    )
}

proptest! {
    #[test]
    fn every_message_arrives_in_at_most_three_hops_of_which_one_crosses_nodes(map in topology()) {
        for from in 0..map.size() {
            for to in 0..map.size() {
                let path = path(&map, from, to);
                prop_assert_eq!(path.last().unwrap().0, to);
                let crossings = path.windows(2).filter(|pair| map.node_of(pair[0].0) != map.node_of(pair[1].0));
                let wanted = usize::from(map.node_of(from) != map.node_of(to));
                prop_assert_eq!(crossings.count(), wanted);
                if wanted == 0 {
                    prop_assert!(path.len() <= 2, "inside a node messages go directly: {:?}", path);
                }
            }
        }
    }

    #[test]
    fn each_node_pair_uses_one_process_pair_in_both_directions(map in topology()) {
        let mut pairs = BTreeSet::new();
        for from in 0..map.size() {
            for to in 0..map.size() {
                for pair in path(&map, from, to).windows(2) {
                    let (a, b) = (pair[0].0, pair[1].0);
                    if map.node_of(a) != map.node_of(b) {
                        pairs.insert((map.node_of(a).min(map.node_of(b)), a.min(b), a.max(b)));
                    }
                }
            }
        }
        let nodes = map.nodes() as usize;
        prop_assert_eq!(pairs.len(), nodes * (nodes - 1) / 2);
    }

    #[test]
    fn a_process_talks_to_nobody_but_those_in_its_tables_and_the_plan_counts_them(map in topology()) {
        for from in 0..map.size() {
            for to in 0..map.size() {
                for pair in path(&map, from, to).windows(2) {
                    let routes = Routes::new(Arc::clone(&map), pair[0].0);
                    let counterparts: Vec<_> = routes.represented().map(|node| routes.counterpart(node)).collect();
                    let other = pair[1].0;
                    prop_assert!(routes.neighbours().any(|rank| rank == other) || counterparts.contains(&other));
                }
            }
            let routes = Routes::new(Arc::clone(&map), from);
            let process = Process::new(&map, from, &Options::default());
            prop_assert_eq!(process.network_queues, routes.represented().count() as u64);
            prop_assert_eq!(process.local_queues, 2 * routes.neighbours().count() as u64);
            prop_assert!(routes.represented().all(|node| routes.representative(node) == from));
            let knows_it = |peer: u32| Routes::new(Arc::clone(&map), peer).peers().contains(&from);
            prop_assert!(routes.peers().into_iter().all(knows_it), "whoever it names names it, too");
        }
    }

    #[test]
    fn a_message_that_came_a_wrong_way_is_named_and_goes_no_further(map in topology(), to in 0..60u32) {
        for me in 0..map.size() {
            let routes = Routes::new(Arc::clone(&map), me);
            let is_here = to < map.size() && map.node_of(to) == routes.node();
            let from_node = routes.next(Came::FromNode, to);
            let from_network = routes.next(Came::FromNetwork, to);
            if to >= map.size() {
                prop_assert!(from_node.is_err() && from_network.is_err());
                prop_assert!(routes.next(Came::FromHere, to).is_err());
            } else if to != me {
                prop_assert!(!is_here || from_node.is_err(), "a neighbour sends straight to its destination");
                prop_assert!(is_here || from_network.is_err(), "nothing crosses nodes twice");
                prop_assert!(routes.next(Came::Relayed, to).is_err(), "a relayed message is at its destination");
            }
        }
    }
}

#[test]
fn the_papers_scale_has_31_local_and_313_network_queues() {
    let map = NodeMap::uniform(10_000, 32).unwrap();
    let plan = Plan::new(&map, &Options::default());
    assert_eq!(plan.processes().len(), 320_000);
    let network = plan.extremes(|process| process.network_queues);
    assert_eq!((network.min, network.max), (311, 313), "312.5 on average, without the own node");
    assert_eq!(plan.extremes(|process| process.local_connections), Extremes { min: 31, max: 31 });
    assert_eq!((plan.ranks(), plan.nodes()), (320_000, 10_000));
}

#[test]
fn the_unequal_nodes_of_the_specification_are_served() {
    for text in ["3+1", "1+3", "5+2+1", "1+7", "0,1,0,1,0", "0,1,2,0,1,2,0", "1x4", "1+1+1+1"] {
        let map = Arc::new(text.parse::<NodeMap>().unwrap());
        for from in 0..map.size() {
            for to in 0..map.size() {
                assert_eq!(path(&map, from, to).last().unwrap().0, to, "{text}: {from} to {to}");
            }
        }
    }
}

/// What each process of a simulated start was counted to send and hold lies within what the plan says. Of each figure, the most.
fn planned_and_simulated(map: &str, seed: u64) -> Vec<(&'static str, u64)> {
    let map: NodeMap = map.parse().unwrap();
    let (simulated, ranks) = (SimulatedStart::run(&map, seed), (0..map.size()).collect::<Vec<_>>());
    let mut most: Vec<(&str, u64)> = simulated.figures(0).collect();
    for (rank, planned) in (0..).zip(Start::of(&map, &ranks)) {
        for (figure, most) in simulated.figures(rank).zip(&mut most) {
            most.1 = most.1.max(figure.1);
        }
        for ((name, counted), (planned_name, bounds)) in
            simulated.figures(rank).zip(planned.figures())
        {
            assert_eq!(name, planned_name);
            assert!(
                bounds.contains(counted),
                "{name} of rank {rank} of {map:?}: {counted}, {bounds:?}"
            );
        }
    }
    most
}

#[test]
fn the_simulated_start_counts_what_the_plan_says() {
    for (map, seed) in [("1x1", 1), ("3+1", 2), ("20x5", 3), ("130x3", 4), ("0,1,2,3,0,1,2,3", 5)] {
        planned_and_simulated(map, seed);
    }
}

#[test]
fn the_plan_prints_all_that_the_simulation_counts_of_the_busiest_process() {
    // More heights than two.
    let text = "80x16";
    let map: NodeMap = text.parse().unwrap();
    let plan = Plan::new(&map, &Options::default());
    let (printed, most) = (plan.to_string(), planned_and_simulated(text, 6));
    let of_simulation = SimulatedStart::run(&map, 6).to_string();
    for ((name, counted), (_, bounds)) in most.into_iter().zip(plan.start().figures()) {
        assert!(bounds.contains(counted), "{name}: {counted}, {bounds:?}");
        assert!(bounds.most <= 12 * counted, "it says something: {name}: {counted}, {bounds:?}");
        let line = |text: &str, count: u64| {
            let count = count.to_string();
            let is_it = |line: &&str| line.starts_with(name) && line.contains(&count);
            assert_eq!(text.lines().filter(is_it).count(), 1, "{name}: {text}");
        };
        line(&printed, bounds.most);
        line(&of_simulation, counted);
    }
    let most = |name| plan.start().figures().find(|figure| figure.0 == name).unwrap().1.most;
    assert!(most("connections") <= u64::from(hg_job::SOCKETS_MAX));
}

/// Whom a node meets in others goes by its number modulo their ranks: those of consecutive nodes are all different.
#[test]
fn a_tree_of_nodes_that_meet_the_same_ranks_passes_on_a_fraction() {
    let (nodes, ranks) = (512, 16);
    let consecutive: Vec<u32> = (0..nodes).collect();
    let mut grouped = consecutive.clone();
    grouped.sort_by_key(|node| (node % ranks, *node));
    let passed_on = [consecutive, grouped].map(|nodes| {
        let node_of = nodes.into_iter().flat_map(|node| (0..ranks).map(move |_| node)).collect();
        let start = Start::new(&NodeMap::new(node_of).unwrap());
        start.figures().find(|figure| figure.0 == "addresses passed on").unwrap().1.most
    });
    assert!(passed_on[0] > 2 * passed_on[1], "{passed_on:?}");
}
