//! What holds for every schedule, and the tables.

mod simulator;

use self::simulator::run;
use super::*;

const ALL: [Schedule; 4] =
    [Schedule::Sequential, Schedule::Chain, Schedule::Tree, Schedule::Pipeline];

/// All that is sent: step, from, to, block. What is received is checked to be the same.
fn sent(schedule: Schedule, members: u32, blocks: u64) -> Vec<(u64, u32, u32, u64)> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for member in 0..members {
        for (step, it) in (0..).zip(Steps::new(schedule, members, blocks, member)) {
            sent.extend(it.send.map(|hop| (step, member, hop.peer, hop.block)));
            received.extend(it.receive.map(|hop| (step, hop.peer, member, hop.block)));
        }
    }
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(sent, received, "{schedule:?} {members} {blocks}: both sides agree");
    sent
}

#[test]
fn every_member_gets_every_block_once_from_one_that_has_it() {
    for schedule in ALL {
        for (members, blocks) in (2..=64).flat_map(|n| (1..=32).map(move |k| (n, k))) {
            let what = format!("{schedule:?}, {members} members, {blocks} blocks");
            let all = sent(schedule, members, blocks);
            let mut held = vec![0u64; members as usize];
            held[0] = u64::MAX;
            let mut last = None;
            for of_step in all.chunk_by(|a, b| a.0 == b.0) {
                let mut senders: Vec<_> = of_step.iter().map(|it| it.1).collect();
                let mut receivers: Vec<_> = of_step.iter().map(|it| it.2).collect();
                for busy in [&mut senders, &mut receivers] {
                    busy.sort_unstable();
                    assert!(busy.windows(2).all(|two| two[0] != two[1]), "{what}: one a step");
                }
                for &(step, from, _, block) in of_step {
                    assert!(held[from as usize] >> block & 1 == 1, "{what}: held, step {step}");
                }
                for &(step, _, to, block) in of_step {
                    assert!(held[to as usize] >> block & 1 == 0, "{what}: twice, step {step}");
                    held[to as usize] |= 1 << block;
                    last = Some(step);
                }
            }
            let whole = (1 << blocks) - 1;
            assert!(held[1..].iter().all(|it| *it == whole), "{what}: all complete");
            assert_eq!(last, Some(schedule.steps(members, blocks) - 1), "{what}: steps");
        }
    }
}

#[test]
fn a_step_asked_for_alone_is_the_one_of_the_iterator() {
    for schedule in ALL {
        for (members, blocks) in [(2, 1), (5, 3), (6, 3), (8, 3), (13, 9), (64, 5)] {
            for member in 0..members {
                for (step, it) in (0..).zip(Steps::new(schedule, members, blocks, member)) {
                    assert_eq!(it, schedule.at(members, blocks, member, step));
                }
            }
            let steps = schedule.steps(members, blocks);
            assert_eq!(schedule.at(members, blocks, 0, steps), Step::default());
        }
    }
}

#[test]
fn step_counts_are_those_of_the_formulas() {
    let steps = |members, blocks| ALL.map(|it| it.steps(members, blocks));
    assert_eq!(steps(4, 256), [768, 258, 512, 257]);
    assert_eq!(steps(8, 256), [1792, 262, 768, 258]);
    assert_eq!(steps(16, 256), [3840, 270, 1024, 259]);
    assert_eq!(steps(8, 8), [56, 14, 24, 10]);
    assert_eq!(steps(512, 256), [130_816, 766, 2304, 264]);
    assert_eq!(steps(6, 3), [15, 7, 9, 5]);
    assert_eq!(steps(1, 3), [0; 4]);
}

#[test]
fn the_pipeline_of_eight_and_of_six_is_that_of_the_tables() {
    let eight = "0>1:0 | 0>2:1 1>3:0 | 0>4:2 1>5:0 2>6:1 3>7:0 | \
                 0>1:2 2>3:1 3>2:0 4>5:2 5>4:0 6>7:1 7>6:0 | \
                 0>2:2 1>3:2 3>1:1 4>6:2 5>7:2 6>4:1 7>5:1";
    let six = "0>1:0 | 0>2:1 1>3:0 | 0>4:2 2>3:1 3>5:0 | 0>5:2 1>4:0 3>1:1 4>3:2 5>2:0 | \
               1>4:1 2>5:1 4>1:2 5>2:2";
    for (members, table) in [(8, eight), (6, six)] {
        let all = sent(Schedule::Pipeline, members, 3);
        let line = |of_step: &[(u64, u32, u32, u64)]| {
            let hops = of_step.iter().map(|(_, from, to, block)| format!("{from}>{to}:{block}"));
            hops.collect::<Vec<_>>().join(" ")
        };
        let lines: Vec<_> = all.chunk_by(|a, b| a.0 == b.0).map(line).collect();
        assert_eq!(lines.join(" | "), table);
    }
}

/// The most.
fn last(ends: &[f64]) -> f64 {
    ends.iter().copied().fold(0.0, f64::max)
}

#[test]
fn copies_to_127_255_and_511_take_the_same_time_within_three_in_a_hundred() {
    let times =
        [128, 256, 512].map(|members| last(&run(Schedule::Pipeline, members, 256, |_, _| 1.0)));
    assert_eq!(times.map(|it| it.round()), [262.0, 263.0, 264.0]);
    assert!(times[2] / times[0] < 1.03, "{times:?}");
    // With numbers of members that are no powers of two as well, one step more.
    for members in [100, 300, 500] {
        let time = last(&run(Schedule::Pipeline, members, 256, |_, _| 1.0));
        assert!(time <= 265.0, "{members}: {time}");
    }
}

/// `l * T' / (T + (l - 1) * T')` is what is left of the bandwidth with one slow link: each member uses it in one of `l` steps.
#[test]
fn one_slow_link_costs_what_the_formula_says() {
    for (members, slowness) in [(8u32, 2.0), (8, 4.0), (16, 2.0), (64, 4.0), (64, 10.0), (512, 2.0)]
    {
        let l = f64::from(members.ilog2());
        let predicted = l * (1.0 / slowness) / (1.0 + (l - 1.0) / slowness);
        let blocks = 2048;
        // Between two receivers, in the first dimension: used in both directions.
        let is_slow = |a: u32, b: u32| a.min(b) == 2 && a.max(b) == 3;
        let time = |a, b| if is_slow(a, b) { slowness } else { 1.0 };
        let good = last(&run(Schedule::Pipeline, members, blocks, |_, _| 1.0));
        let found = good / last(&run(Schedule::Pipeline, members, blocks, time));
        let ratio = found / predicted;
        assert!((0.97..1.03).contains(&ratio), "{members}, {slowness}: {found} not {predicted}");
    }
}

/// Steps that a block waits at a member before it is passed on, on average in the middle of a transfer: `2 * (1 - (l - 1) / (n - 2))`.
#[test]
fn the_average_slack_is_that_of_the_formula() {
    for members in [8u32, 16, 32, 64, 128] {
        let blocks = 512;
        let mut arrived = rustc_hash::FxHashMap::default();
        let (mut slack, mut sends) = (0, 0);
        for (step, from, to, block) in sent(Schedule::Pipeline, members, blocks) {
            arrived.insert((to, block), step);
            if from != 0 && (128..256).contains(&block) {
                slack += step - arrived[&(from, block)];
                sends += 1;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let found = slack as f64 / f64::from(sends);
        let (l, n) = (f64::from(members.ilog2()), f64::from(members));
        let predicted = 2.0 * (1.0 - (l - 1.0) / (n - 2.0));
        assert!((found - predicted).abs() < 1e-9, "{members}: {found} not {predicted}");
    }
}

#[test]
fn inside_one_node_few_blocks_of_memory_go_straight_to_everybody() {
    let kind = |blocks, nodes| Kind::of(Choice::Auto, 1 << 20, blocks, nodes);
    let few = Some(WHOLE_BLOCKS_MAX);
    assert_eq!(kind(few, &[0; 20]), Kind::Direct);
    assert_eq!(kind(Some(WHOLE_BLOCKS_MAX + 1), &[0; 20]), Kind::Hybrid);
    assert_eq!(kind(None, &[0; 20]), Kind::Hybrid, "slots of what is read go back block by block");
    assert_eq!(kind(few, &[0, 0, 2]), Kind::Hybrid);
    assert_eq!(kind(few, &[0, 1, 2]), Kind::Pipeline);
}

#[test]
fn small_objects_go_straight_to_few_members() {
    assert_eq!((SMALL_OBJECT_MAX, SMALL_MEMBERS_MAX), (10 << 10, 16));
    let alone: Vec<_> = (0..17).collect();
    let kind = |size, members| Kind::of(Choice::Auto, size, None, &alone[..members]);
    assert_eq!(kind(10 << 10, 16), Kind::Direct);
    assert_eq!(kind((10 << 10) + 1, 16), Kind::Pipeline);
    assert_eq!(kind(10 << 10, 17), Kind::Pipeline);
}

/// Nodes of so many members each, which stand together in the list or apart.
fn nodes_of(members: u32, of_node: u32, is_apart: bool) -> Vec<u32> {
    let nodes = members.div_ceil(of_node);
    (0..members).map(|it| if is_apart { it % nodes } else { it / of_node }).collect()
}

#[test]
fn in_a_hybrid_the_first_of_each_node_gets_every_block_once_from_another_first_and_gives_it_to_its_own()
 {
    let lists = [1, 2, 3, 8].into_iter().flat_map(|of_node| {
        let list =
            move |it| nodes_of(it, of_node, false).into_iter().zip(nodes_of(it, of_node, true));
        (2..=64).map(move |it| list(it).unzip()).flat_map(|both: (Vec<_>, Vec<_>)| [both.0, both.1])
    });
    for (nodes, blocks) in lists.flat_map(|nodes| (1..=32).map(move |k| (nodes.clone(), k))) {
        let members = u32::try_from(nodes.len()).unwrap();
        let among: Vec<_> = (0..members).collect();
        let what = format!("{nodes:?}, {blocks} blocks");
        let head = |member: u32| nodes.iter().position(|it| *it == nodes[member as usize]).unwrap();
        let is_head = |member: u32| head(member) == member as usize;
        let mut comes = vec![0u64; nodes.len()];
        for from in 0..members {
            let plan = Plan::new(Kind::Hybrid, (&among, &nodes), blocks, from);
            let stepped: Vec<_> = plan.stepped.into_iter().flatten().collect();
            assert!(
                stepped.iter().all(|it| is_head(from) && is_head(it.0)),
                "{what}: among firsts"
            );
            let is_own = |to: &u32| head(*to) == from as usize && *to != from;
            assert!(plan.direct.iter().all(is_own), "{what}: to its own");
            let direct = plan.direct.iter().flat_map(|to| (0..blocks).map(|it| (*to, it)));
            for (to, block) in direct.chain(stepped) {
                let bit = 1 << block;
                assert_eq!(comes[to as usize] & bit, 0, "{what}: {to} gets {block} once");
                comes[to as usize] |= bit;
            }
        }
        let all = u64::MAX >> (64 - blocks);
        assert!(comes[0] == 0 && comes[1..].iter().all(|it| *it == all), "{what}: all complete");
    }
}

#[test]
fn blocks_grow_with_the_root_of_the_object_and_are_larger_inside_a_host() {
    let mib = 1 << 20;
    let sizes = [1, mib / 16, mib, 16 * mib, 256 * mib, 4096 * mib, u64::MAX];
    let blocks = |hosts| sizes.map(|size| block_size(size, hosts) >> 10);
    assert_eq!(blocks(1), [64, 64, 256, 1024, 4096, 4096, 4096]);
    assert_eq!(blocks(4), [64, 64, 128, 512, 2048, 4096, 4096]);
    assert_eq!(blocks(8), [64, 64, 128, 512, 2048, 4096, 4096]);
}
