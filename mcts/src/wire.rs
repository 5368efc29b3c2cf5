//! Messages between workers of different processes, as bytes.
//!
//! A batch begins with [`Head`]; then come its messages, one after the other. Numbers are little-endian.
//!
//! | message | bytes |
//! |---|---|
//! | a selection | 0; rollouts (2); the path |
//! | the end of the phase | 2 |
//! | a report | 4, and 1 where the first player has won, 2 the second, 3 nobody; rollouts (2), simulations (4), score (4); the path |
//! | what was counted | 8; moves to the node (1), each (2); children (2); for each its move (2), simulations (4), score (4), proof (1, as above, or 0) |
//! | the end of that | 9, or 10 of the last |
//! | a path | hops (2); for each the node (4), the child (2), its move (2), the owner (2) |
//!
//! What comes is looked at here as far as that goes without a tree: see [`crate::worker`] for the rest.

use crate::{
    Outcome, Player, SIMULATIONS_A_LEAF_MAX, WINDOW_MAX,
    message::{Body, Hop, MERGED_DEPTH_MAX, Message, Moves, NEWS_MAX, News, Path},
    tree::{CHILDREN_MAX, Tally},
    worker::PATH_MAX,
};

/// What all messages of a batch have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) phase: u32,
    /// How much work waits at the sender.
    pub(crate) load: u32,
}

/// Bytes that are no batch of messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

const SELECT: u8 = 0;
const STOP: u8 = 2;
const REPORT: u8 = 4;
const NEWS: u8 = 8;
const TOLD: u8 = 9;
const LAST: u8 = 10;

const HOP_BYTES: usize = 10;
/// Bytes of the longest message.
pub(crate) const MESSAGE_MAX: usize = 13 + PATH_MAX * HOP_BYTES;
const CHILD_BYTES: usize = 11;
const _: () = assert!(4 + 2 * MERGED_DEPTH_MAX + NEWS_MAX * CHILD_BYTES <= MESSAGE_MAX);
/// With the longest message a batch still fits in one message of any transport.
const _: () = assert!(4096 + MESSAGE_MAX < 16 << 10);

impl Head {
    pub(crate) fn write(self, into: &mut Vec<u8>) {
        into.extend(self.phase.to_le_bytes());
        into.extend(self.load.to_le_bytes());
    }
}

pub(crate) fn write(body: &Body, into: &mut Vec<u8>) {
    match body {
        Body::Select { path, count } => {
            into.push(SELECT);
            into.extend(rollouts(*count));
            write_path(path, into);
        }
        Body::Report { path, tally, proof } => {
            into.push(REPORT + proof_number(*proof));
            into.extend(rollouts(tally.rollouts));
            into.extend(tally.simulations.to_le_bytes());
            into.extend(tally.score.to_le_bytes());
            write_path(path, into);
        }
        Body::Stop => into.push(STOP),
        Body::News { moves, news } => {
            into.push(NEWS);
            into.push(u8::try_from(moves.len()).expect("at most MERGED_DEPTH_MAX"));
            into.extend(moves.iter().flat_map(|mv| mv.to_le_bytes()));
            into.extend(u16::try_from(news.len()).expect("at most NEWS_MAX").to_le_bytes());
            for it in news {
                into.extend(it.mv.to_le_bytes());
                into.extend(it.visits.to_le_bytes());
                into.extend(it.score.to_le_bytes());
                into.push(proof_number(it.proof));
            }
        }
        Body::Told { is_last } => into.push(if *is_last { LAST } else { TOLD }),
    }
}

fn proof_number(proof: Option<Outcome>) -> u8 {
    match proof {
        None => 0,
        Some(Outcome::Won(Player::First)) => 1,
        Some(Outcome::Won(Player::Second)) => 2,
        Some(Outcome::Drawn) => 3,
    }
}

fn proof_of(number: u8) -> Result<Option<Outcome>, Malformed> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Outcome::Won(Player::First))),
        2 => Ok(Some(Outcome::Won(Player::Second))),
        3 => Ok(Some(Outcome::Drawn)),
        _ => Err(Malformed),
    }
}

/// At most [`WINDOW_MAX`], unless another process has lied, which the receiver then finds out.
fn rollouts(count: u32) -> [u8; 2] {
    u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes()
}

fn write_path(path: &Path, into: &mut Vec<u8>) {
    into.extend(u16::try_from(path.len()).expect("at most PATH_MAX").to_le_bytes());
    for hop in path {
        let mut bytes = [0; HOP_BYTES];
        bytes[..4].copy_from_slice(&hop.node.to_le_bytes());
        for (at, half) in [hop.edge, hop.mv, hop.owner].into_iter().enumerate() {
            bytes[4 + 2 * at..][..2].copy_from_slice(&half.to_le_bytes());
        }
        into.extend(bytes);
    }
}

/// Appends the messages of a batch that this worker has sent.
pub(crate) fn read(
    mut bytes: &[u8],
    from: u16,
    into: &mut Vec<Message>,
) -> Result<Head, Malformed> {
    let rest = &mut bytes;
    let (phase, load) = (u32::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
    while !rest.is_empty() {
        into.push(Message { phase, from, body: read_body(rest)? });
    }
    Ok(Head { phase, load })
}

fn read_body(rest: &mut &[u8]) -> Result<Body, Malformed> {
    let [kind] = take(rest)?;
    match kind {
        STOP => return Ok(Body::Stop),
        TOLD | LAST => return Ok(Body::Told { is_last: kind == LAST }),
        NEWS => return read_news(rest),
        _ => {}
    }
    let count = u32::from(u16::from_le_bytes(take(rest)?));
    if count == 0 || count > WINDOW_MAX {
        return Err(Malformed);
    }
    let proof = match kind {
        SELECT => return Ok(Body::Select { path: read_path(rest)?, count }),
        REPORT.. => proof_of(kind - REPORT)?,
        _ => return Err(Malformed),
    };
    let (simulations, score) = (u32::from_le_bytes(take(rest)?), i32::from_le_bytes(take(rest)?));
    if simulations > count * SIMULATIONS_A_LEAF_MAX || score.unsigned_abs() > simulations {
        return Err(Malformed);
    }
    let tally = Tally { rollouts: count, simulations, score };
    Ok(Body::Report { path: read_path(rest)?, tally, proof })
}

fn read_news(rest: &mut &[u8]) -> Result<Body, Malformed> {
    let [depth] = take(rest)?;
    if usize::from(depth) > MERGED_DEPTH_MAX {
        return Err(Malformed);
    }
    let moves: Moves =
        (0..depth).map(|_| take(rest).map(u16::from_le_bytes)).collect::<Result<_, _>>()?;
    let children = usize::from(u16::from_le_bytes(take(rest)?));
    if children > NEWS_MAX {
        return Err(Malformed);
    }
    let mut child = || {
        let (mv, visits) = (u16::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
        let (score, [proof]) = (i32::from_le_bytes(take(rest)?), take(rest)?);
        Ok(News { mv, visits, score, proof: proof_of(proof)? })
    };
    let news = (0..children).map(|_| child()).collect::<Result<_, _>>()?;
    Ok(Body::News { moves, news })
}

/// A path of one hop at least: rollouts begin at the root's owner, and end there.
fn read_path(rest: &mut &[u8]) -> Result<Path, Malformed> {
    let hops = usize::from(u16::from_le_bytes(take(rest)?));
    if hops == 0 || hops > PATH_MAX {
        return Err(Malformed);
    }
    let (bytes, after) = rest.split_at_checked(hops * HOP_BYTES).ok_or(Malformed)?;
    *rest = after;
    let hop = |mut bytes: &[u8]| {
        let node = u32::from_le_bytes(take(&mut bytes)?);
        let mut half = || take(&mut bytes).map(u16::from_le_bytes);
        let (edge, mv, owner) = (half()?, half()?, half()?);
        let is_child = usize::from(edge) < CHILDREN_MAX;
        if is_child { Ok(Hop { node, edge, mv, owner }) } else { Err(Malformed) }
    };
    bytes.chunks_exact(HOP_BYTES).map(hop).collect()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (bytes, after) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = after;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path() -> impl Strategy<Value = Path> {
        let hop = (any::<u32>(), 0..512_u16, any::<u16>(), any::<u16>());
        proptest::collection::vec(hop, 1..20).prop_map(|hops| {
            hops.into_iter().map(|(node, edge, mv, owner)| Hop { node, edge, mv, owner }).collect()
        })
    }

    fn body() -> impl Strategy<Value = Body> {
        let proof = proptest::sample::select(vec![
            None,
            Some(Outcome::Drawn),
            Some(Outcome::Won(Player::First)),
            Some(Outcome::Won(Player::Second)),
        ]);
        let news = (any::<u16>(), any::<u32>(), any::<i32>(), proof.clone())
            .prop_map(|(mv, visits, score, proof)| News { mv, visits, score, proof });
        prop_oneof![
            (path(), 1..=WINDOW_MAX).prop_map(|(path, count)| Body::Select { path, count }),
            (path(), 1..=WINDOW_MAX, -16..=16_i32, proof).prop_map(
                |(path, rollouts, score, proof)| {
                    let tally = Tally { rollouts, simulations: 16 * rollouts, score };
                    Body::Report { path, tally, proof }
                }
            ),
            Just(Body::Stop),
            any::<bool>().prop_map(|is_last| Body::Told { is_last }),
            (
                proptest::collection::vec(any::<u16>(), 0..=MERGED_DEPTH_MAX),
                proptest::collection::vec(news, 0..NEWS_MAX)
            )
                .prop_map(|(moves, news)| Body::News { moves: moves.into(), news }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            bodies in proptest::collection::vec(body(), 0..8), phase: u32, load: u32, from: u16,
        ) {
            let (mut bytes, head) = (Vec::new(), Head { phase, load });
            head.write(&mut bytes);
            for body in &bodies {
                let before = bytes.len();
                write(body, &mut bytes);
                prop_assert!(bytes.len() - before <= MESSAGE_MAX);
            }
            let mut messages = Vec::new();
            prop_assert_eq!(read(&bytes, from, &mut messages), Ok(head));
            prop_assert!(messages.iter().all(|it| it.phase == phase && it.from == from));
            let read_bodies: Vec<Body> = messages.into_iter().map(|it| it.body).collect();
            prop_assert_eq!(format!("{read_bodies:?}"), format!("{bodies:?}"));
            // Every beginning is refused, or is a batch of fewer messages.
            for end in 0..bytes.len() {
                let mut fewer = Vec::new();
                if read(&bytes[..end], from, &mut fewer).is_ok() {
                    prop_assert!(fewer.len() < bodies.len());
                }
            }
        }

        #[test]
        fn bytes_of_a_stranger_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes, 0, &mut Vec::new());
        }
    }

    #[test]
    fn what_no_worker_sends_is_refused() {
        let refused = |bytes: &[u8]| {
            let bytes = [&[0; 8], bytes].concat();
            read(&bytes, 0, &mut Vec::new()) == Err(Malformed)
        };
        let hop = [0; HOP_BYTES];
        assert!(!refused(&[&[SELECT, 1, 0, 1, 0][..], &hop].concat()));
        assert!(refused(&[SELECT, 1, 0, 0, 0]), "an empty path");
        assert!(refused(&[&[SELECT, 0, 0, 1, 0][..], &hop].concat()), "no rollout");
        assert!(refused(&[SELECT, 1, 0, 255, 255]), "a path without end");
        let report = |score: i32| {
            let head = [&[REPORT, 1, 0][..], &4_u32.to_le_bytes(), &score.to_le_bytes()].concat();
            [&head[..], &[1, 0], &hop].concat()
        };
        assert!(!refused(&report(-4)));
        assert!(refused(&report(5)) && refused(&report(i32::MIN)), "more wins than games");
        let news = |children: u16, proof: u8| {
            let child = [&[0; CHILD_BYTES - 1][..], &[proof]].concat();
            let head = [&[NEWS, 1, 7, 0][..], &children.to_le_bytes()].concat();
            [head, child.repeat(children.into())].concat()
        };
        assert!(!refused(&news(256, 3)));
        assert!(refused(&news(257, 3)), "more children than are sent at a time");
        assert!(refused(&news(1, 4)), "no result");
        assert!(refused(&[&[NEWS, 33][..], &[0; 68]].concat()), "deeper than what is merged");
        assert!(refused(&[1]) && refused(&[3]) && refused(&[11]), "no kind");
    }
}
