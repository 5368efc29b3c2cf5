//! A plan against a naive one that knows every byte, in every order of events.

use hg_na::Error;
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};

use super::*;

/// Regions of these lengths, and a range of them.
#[derive(Debug, Clone)]
struct Cut {
    lens: Vec<u64>,
    offset: u64,
    len: u64,
}

impl Cut {
    fn whole(lens: &[u64]) -> Self {
        Self { lens: lens.to_vec(), offset: 0, len: lens.iter().sum() }
    }
}

impl Regions for Cut {
    fn span(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        self.lens.get(region).copied()
    }
}

/// Region and offset of each byte of a range, in order: the naive plan of one side.
fn bytes_of(cut: &Cut) -> Vec<Place> {
    let of_region =
        |(region, &len): (usize, &u64)| (0..len).map(move |offset| Place { region, offset });
    let all = cut.lens.iter().enumerate().flat_map(of_region);
    let (skip, len) = (usize::try_from(cut.offset).unwrap(), usize::try_from(cut.len).unwrap());
    all.skip(skip).take(len).collect()
}

fn naive(local: &Cut, remote: &Cut) -> Vec<(Place, Place)> {
    bytes_of(local).into_iter().zip(bytes_of(remote)).collect()
}

fn bytes_of_piece(piece: &Piece) -> impl Iterator<Item = (Place, Place)> {
    let Piece { local, remote, len } = *piece;
    let at = |place: Place, byte| Place { offset: place.offset + byte, ..place };
    (0..len).map(move |byte| (at(local, byte), at(remote, byte)))
}

fn op(serial: u64) -> OpId {
    OpId { scope: 7, serial }
}

const SMALL: Limits = Limits { piece: 8, in_flight: 2 };

#[test]
fn a_transfer_of_nothing_is_finished_at_once() {
    for lens in [&[][..], &[0], &[0, 0, 0]] {
        let mut plan = Plan::new(Cut::whole(lens), Cut::whole(&[]), SMALL);
        assert!(plan.is_finished());
        assert_eq!(plan.next_piece(), None);
        assert!(matches!(plan.take_outcome(), Some(Ok(()))));
        assert!(plan.take_outcome().is_none());
    }
}

#[test]
fn a_piece_without_room_is_given_again() {
    let mut plan = Plan::new(Cut::whole(&[4]), Cut::whole(&[4]), SMALL);
    let first = plan.next_piece().unwrap();
    assert_eq!(plan.next_piece(), Some(first));
    plan.handle_posted(&first, op(1));
    assert_eq!(plan.next_piece(), None);
    plan.handle_done(op(1), Ok(()));
    assert!(matches!(plan.take_outcome(), Some(Ok(()))));
}

#[test]
fn a_piece_that_was_not_moved_is_given_again_beside_one_that_is_open() {
    let mut plan = Plan::new(Cut::whole(&[5, 9]), Cut::whole(&[14]), SMALL);
    let first = plan.next_piece().unwrap();
    plan.handle_posted(&first, op(1));
    for _ in 0..2 {
        let second = plan.next_piece().unwrap();
        assert_eq!((second.local.region, second.remote.offset, second.len), (1, 5, 8));
        plan.handle_posted(&second, op(2));
        assert!(plan.is_open(op(2)));
        plan.handle_returned(&second, op(2));
        assert!(!plan.is_open(op(2)) && plan.is_open(op(1)));
    }
    plan.stop(TransferError::Cancelled);
    assert_eq!(plan.next_piece(), None);
    plan.handle_done(op(1), Ok(()));
    assert!(matches!(plan.take_outcome(), Some(Err(TransferError::Cancelled))));
}

#[test]
fn no_more_pieces_are_under_way_than_the_limit() {
    let mut plan = Plan::new(Cut::whole(&[80]), Cut::whole(&[80]), SMALL);
    for serial in 0..2 {
        let piece = plan.next_piece().unwrap();
        assert_eq!(piece.len, 8);
        plan.handle_posted(&piece, op(serial));
    }
    assert_eq!(plan.next_piece(), None);
    plan.handle_done(op(1), Ok(()));
    assert_eq!(plan.next_piece().unwrap().local.offset, 16);
}

#[test]
fn the_first_error_wins_and_waits_for_what_is_open() {
    let mut plan = Plan::new(Cut::whole(&[80]), Cut::whole(&[80]), SMALL);
    for serial in 0..2 {
        let piece = plan.next_piece().unwrap();
        plan.handle_posted(&piece, op(serial));
    }
    plan.stop(TransferError::DeadlineExceeded);
    plan.stop(TransferError::Cancelled);
    assert_eq!(plan.next_piece(), None);
    assert_eq!([plan.next_cancel(), plan.next_cancel()], [Some(op(0)), Some(op(1))]);
    assert_eq!(plan.next_cancel(), None);
    plan.handle_done(op(0), Err(TransferError::Stale));
    assert!(!plan.is_finished() && plan.take_outcome().is_none());
    plan.handle_done(op(0), Ok(()));
    assert!(!plan.is_finished(), "a completion counts once");
    plan.handle_done(op(1), Ok(()));
    assert!(matches!(plan.take_outcome(), Some(Err(TransferError::DeadlineExceeded))));
}

#[test]
fn a_stop_after_the_end_changes_nothing() {
    let mut plan = Plan::new(Cut::whole(&[4]), Cut::whole(&[4]), SMALL);
    let piece = plan.next_piece().unwrap();
    plan.handle_posted(&piece, op(1));
    plan.handle_done(op(1), Ok(()));
    plan.stop(TransferError::Cancelled);
    assert!(matches!(plan.take_outcome(), Some(Ok(()))));
    plan.stop(TransferError::Cancelled);
    assert!(plan.take_outcome().is_none());
}

#[test]
fn a_closed_transport_ends_a_transfer_with_open_pieces() {
    let mut plan = Plan::new(Cut::whole(&[80]), Cut::whole(&[80]), SMALL);
    let piece = plan.next_piece().unwrap();
    plan.handle_posted(&piece, op(1));
    plan.abort(TransferError::Closed);
    assert!(matches!(plan.take_outcome(), Some(Err(TransferError::Closed))));
    plan.handle_done(op(1), Ok(()));
    assert!(plan.take_outcome().is_none());
}

/// What happens next in a random run.
#[derive(Debug, Clone, Copy)]
enum Event {
    Post,
    NoRoom,
    Refuse,
    Done(usize),
    Fail(usize),
    Stop,
    AskCancel,
}

fn event() -> impl Strategy<Value = Event> {
    (0_u32..100, 0_usize..8).prop_map(|(kind, which)| match kind {
        0..45 => Event::Post,
        45..52 => Event::NoRoom,
        52 => Event::Refuse,
        53..90 => Event::Done(which),
        90 => Event::Fail(which),
        91 => Event::Stop,
        _ => Event::AskCancel,
    })
}

/// Two ranges of equal length over lists that are cut differently.
fn sides() -> impl Strategy<Value = (Cut, Cut)> {
    let lens = || proptest::collection::vec(0_u64..30, 0..12);
    (lens(), lens(), 0_u64..1000, 0_u64..1000, 0_u64..1000).prop_map(|(local, remote, a, b, c)| {
        let (here, there): (u64, u64) = (local.iter().sum(), remote.iter().sum());
        let (from, to) = (a % (here + 1), b % (there + 1));
        let len = c % ((here - from).min(there - to) + 1);
        (Cut { lens: local, offset: from, len }, Cut { lens: remote, offset: to, len })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_moves_once_to_its_place_or_the_first_error_is_told_once(
        (local, remote) in sides(),
        piece in 1_u64..40, in_flight in 1_usize..=PIECES_IN_FLIGHT,
        events in proptest::collection::vec(event(), 0..150),
    ) {
        let expected = naive(&local, &remote);
        let mut plan = Plan::new(local, remote, Limits { piece, in_flight });
        let (mut open, mut asked, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_error = None;
        // At the end everything that is left happens.
        let rest = std::iter::repeat([Event::Post, Event::AskCancel, Event::Done(0)]).flatten();
        let mut serial = 0;
        for event in events.into_iter().chain(rest) {
            prop_assert!(open.len() <= in_flight);
            prop_assert!(plan.is_finished() <= open.is_empty());
            if plan.is_finished() {
                break;
            }
            match event {
                Event::Post => if let Some(piece) = plan.next_piece() {
                    prop_assert!(first_error.is_none(), "nothing is posted after an error");
                    serial += 1;
                    plan.handle_posted(&piece, op(serial));
                    open.push((op(serial), piece));
                },
                Event::NoRoom => prop_assert_eq!(plan.next_piece(), plan.next_piece()),
                Event::Refuse => if plan.next_piece().is_some() {
                    plan.handle_refused(Error::StaleDescriptor.into());
                    first_error.get_or_insert("Stale");
                },
                Event::Done(which) if !open.is_empty() => {
                    let (id, piece) = open.swap_remove(which % open.len());
                    moved.extend(bytes_of_piece(&piece));
                    plan.handle_done(id, Ok(()));
                }
                Event::Fail(which) if !open.is_empty() => {
                    let (id, _) = open.swap_remove(which % open.len());
                    plan.handle_done(id, Err(Error::UnknownPeer.into()));
                    first_error.get_or_insert("PeerGone");
                }
                Event::Stop => {
                    plan.stop(TransferError::Cancelled);
                    first_error.get_or_insert("Cancelled");
                }
                Event::AskCancel => if let Some(id) = plan.next_cancel() {
                    prop_assert!(first_error.is_some(), "only a failed transfer is cancelled");
                    prop_assert!(open.iter().any(|(it, _)| *it == id), "only what is open");
                    prop_assert!(!asked.contains(&id), "only once");
                    asked.push(id);
                },
                Event::Done(_) | Event::Fail(_) => {}
            }
        }
        let outcome = plan.take_outcome().expect("a finished plan has an outcome");
        prop_assert!(plan.take_outcome().is_none() && plan.next_piece().is_none());
        moved.sort_by_key(|(local, _)| (local.region, local.offset));
        match (outcome, first_error) {
            (Ok(()), None) => prop_assert_eq!(moved, expected),
            (Err(error), Some(name)) => {
                let kind = format!("[{name}]");
                prop_assert!(format!("{error:?}").ends_with(&kind), "{error:?} instead of {name}");
                moved.windows(2).try_for_each(|two| {
                    prop_assert!(two[0] != two[1], "no byte moves twice");
                    Ok(())
                })?;
                prop_assert!(moved.iter().all(|pair| expected.contains(pair)));
            }
            (outcome, error) => prop_assert!(false, "{outcome:?} after {error:?}"),
        }
    }
}
