//! Connections between two endpoints of one process, over shared memory: what each call promises.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::{thread, time::Duration};

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_na_sm::SmPlugin;
use hg_sockets::{Connection, Error, Flags, Listener, Sockets};
use watchdog::Watchdog;

const NOW: Option<Duration> = Some(Duration::ZERO);
const NONE: Flags = Flags::empty();
const PORT: u32 = 7;
/// Lengths around what fits in a frame.
const LENGTHS: [usize; 6] = [0, 1, 5000, 16_368, 16_369, 300_000];

fn sockets() -> Sockets {
    let url = Address::new("sm://").unwrap();
    Sockets::over(SmPlugin.open(&url, &OpenOptions::listening()).unwrap()).unwrap()
}

/// Two ends, of two endpoints; both are kept by their connections.
fn pair() -> (Connection, Connection) {
    let (near, far) = (sockets(), sockets());
    let listener = far.listen(PORT, 1).unwrap();
    connected(&near, &far, &listener)
}

fn connected(near: &Sockets, far: &Sockets, listener: &Listener) -> (Connection, Connection) {
    thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(NONE, None).unwrap());
        let connection = near.connect(far.address(), PORT, Flags::RC, None).unwrap();
        (connection, accepted.join().unwrap())
    })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Both ends at once: `near` sends what `far` receives.
fn both<T: Send, U: Send>(
    near: impl FnOnce() -> T + Send,
    far: impl FnOnce() -> U + Send,
) -> (T, U) {
    thread::scope(|scope| {
        let far = scope.spawn(far);
        let near = near();
        (near, far.join().unwrap())
    })
}

#[test]
fn what_is_sent_in_one_call_is_received_in_one_whole_and_in_order() {
    let _watchdog = Watchdog::start();
    for flags in [NONE, Flags::RC | Flags::READ, Flags::WRITE, Flags::READ | Flags::WRITE] {
        let (near, far) = pair();
        let send = || {
            for len in LENGTHS {
                near.send(&bytes(len), flags, None).unwrap();
            }
            near.close(None).unwrap();
        };
        let receive = || {
            let mut into = vec![0; 300_000];
            for len in LENGTHS {
                assert_eq!(far.recv(&mut into, NONE, None).unwrap(), len);
                assert_eq!(into[..len], bytes(len));
            }
            assert!(matches!(far.recv(&mut into, NONE, None), Err(Error::Closed)));
            assert!(matches!(far.send(b"late", NONE, None), Err(Error::Closed)));
        };
        both(send, receive);
    }
}

#[test]
fn messages_land_in_registered_memory_whoever_moves_them() {
    let _watchdog = Watchdog::start();
    let (sender, endpoint) = (sockets(), sockets());
    let listener = endpoint.listen(PORT, 1).unwrap();
    let (near, far) = connected(&sender, &endpoint, &listener);
    for pinned in [Flags::SEND, Flags::READ, Flags::WRITE] {
        let len = if pinned == Flags::SEND { 9000 } else { 100_000 };
        // The receiver pins how what is longer comes.
        let flags = if pinned == Flags::SEND { pinned } else { NONE };
        let memory = endpoint.register(vec![7; 120_000]).unwrap();
        let send = || near.send(&bytes(len), flags, None).and_then(|()| answer(&near));
        let receive = || {
            assert_eq!(far.recv_zero_copy(&memory, pinned, None).unwrap(), len as u64);
            far.send(b"it has landed", NONE, None)
        };
        let (sent, received) = both(send, receive);
        sent.unwrap();
        received.unwrap();
        let mut seen = vec![0; len + 1];
        memory.read(0, &mut seen).unwrap();
        assert_eq!((&seen[..len], seen[len]), (&bytes(len)[..], 7));
        let vector = memory.into_memory().unwrap().into_vec().unwrap();
        assert_eq!(vector[..len], bytes(len));
    }
}

/// Waits for any answer, which lets this side serve what it has offered.
fn answer(connection: &Connection) -> Result<(), Error> {
    connection.recv(&mut [0; 64], NONE, None).map(drop)
}

#[test]
fn whoever_does_not_receive_is_waited_for_and_holds_up_no_other_connection() {
    let _watchdog = Watchdog::start();
    let (near, far) = (sockets(), sockets());
    let listener = far.listen(PORT, 2).unwrap();
    let (full, unread) = connected(&near, &far, &listener);
    let (other, read) = connected(&near, &far, &listener);
    let mut sent = 0_u32;
    let mut into = [0; 16];
    // The far side takes what comes while it looks for something else.
    let refused = loop {
        match full.send(&sent.to_le_bytes(), NONE, NOW) {
            Ok(()) => sent += 1,
            Err(error) if sent > 1000 => break error,
            Err(_) => {}
        }
        assert!(matches!(read.recv(&mut into, NONE, NOW), Err(Error::TimedOut)));
    };
    assert!(matches!(refused, Error::TimedOut), "{refused}");
    for flags in [Flags::SEND, Flags::READ, Flags::WRITE] {
        let send = || {
            other.send(b"hello", flags, None).unwrap();
            answer(&other).unwrap();
        };
        let receive = || {
            assert_eq!(read.recv(&mut [0; 16], NONE, None).unwrap(), 5);
            read.send(b"thanks", NONE, None).unwrap();
        };
        both(send, receive);
    }
    let more = || {
        (sent..sent + 1000).for_each(|it| full.send(&it.to_le_bytes(), NONE, None).unwrap());
        full.close(None).unwrap();
    };
    let all = || {
        let mut into = [0; 4];
        for number in 0..sent + 1000 {
            unread.recv(&mut into, NONE, None).unwrap();
            assert_eq!(u32::from_le_bytes(into), number);
        }
        assert!(matches!(unread.recv(&mut into, NONE, None), Err(Error::Closed)));
    };
    both(more, all);
}

#[test]
fn offers_that_nobody_takes_are_bounded_and_closing_waits_for_them_as_long_as_it_may() {
    let _watchdog = Watchdog::start();
    let (near, far) = pair();
    let mut into = vec![0; 20_000];
    for _ in 0..16 {
        near.send(&bytes(20_000), NONE, None).unwrap();
    }
    assert!(matches!(near.send(&bytes(20_000), NONE, NOW), Err(Error::TimedOut)));
    // Its sender is in no call, so over this transport it comes all the same, or goes on later.
    let early = far.recv(&mut into, Flags::WRITE, NOW);
    assert!(matches!(early, Ok(20_000) | Err(Error::TimedOut)), "{early:?}");
    let left = 16 - usize::from(early.is_ok());
    let close = || near.close(None).unwrap();
    let receive = || {
        for _ in 0..left {
            assert_eq!(far.recv(&mut into, NONE, None).unwrap(), 20_000);
            assert_eq!(into, bytes(20_000));
        }
        assert!(matches!(far.recv(&mut into, NONE, None), Err(Error::Closed)));
    };
    both(close, receive);
    let (near, far) = pair();
    near.send(&bytes(20_000), NONE, None).unwrap();
    let said = near.close(NOW).unwrap_err();
    assert!(matches!(said, Error::TimedOut), "{said}");
    drop(far);
}

#[test]
fn a_message_for_which_there_is_no_room_stays_and_says_how_long_it_is() {
    let _watchdog = Watchdog::start();
    let (near, far) = pair();
    for flags in [Flags::SEND, Flags::READ] {
        near.send(b"twelve bytes", flags, None).unwrap();
        let mut into = [0; 12];
        let said = far.recv(&mut into[..11], NONE, None).unwrap_err();
        assert!(matches!(said, Error::NoRoom { len: 12, room: 11 }), "{said}");
        let receive = || {
            assert_eq!(far.recv(&mut into, NONE, None).unwrap(), 12);
            far.send(b"", NONE, None).unwrap();
        };
        both(|| answer(&near).unwrap(), receive);
        assert_eq!(&into, b"twelve bytes");
    }
    let said = near.send(&bytes(16_369), Flags::SEND, None).unwrap_err();
    assert!(matches!(said, Error::TooLong { len: 16_369, .. }), "{said}");
}

#[test]
fn who_cannot_connect_is_told_why() {
    let _watchdog = Watchdog::start();
    let (near, far) = (sockets(), sockets());
    let listener = far.listen(PORT, 1).unwrap();
    assert!(matches!(far.listen(PORT, 1), Err(Error::PortInUse(PORT))));
    let serve = || listener.accept(NONE, None).unwrap();
    let ask = || {
        let said = near.connect(far.address(), PORT + 1, NONE, None).unwrap_err();
        assert!(matches!(said, Error::Refused("nobody listens at this port")), "{said}");
        near.connect(far.address(), PORT, NONE, None).unwrap()
    };
    let (first, accepted) = both(ask, serve);
    // Somebody has to look at what comes.
    let second = listener.accept(NONE, NOW);
    assert!(matches!(second, Err(Error::TimedOut)));
    let look = || answer(&accepted);
    let ask = || {
        let _waits = near.connect(far.address(), PORT, NONE, None).unwrap();
        let said = near.connect(far.address(), PORT, NONE, None).unwrap_err();
        first.send(b"stop looking", NONE, None).unwrap();
        said
    };
    let (said, looked) = both(ask, look);
    looked.unwrap();
    assert!(said.to_string().contains("wait to be accepted"), "{said}");
    drop(listener);
    far.listen(PORT, 1).unwrap();
    let late = near.connect(far.address(), PORT, NONE, NOW).unwrap_err();
    assert!(matches!(late, Error::TimedOut), "{late}");
}

#[test]
fn threads_share_endpoints_and_connections() {
    let _watchdog = Watchdog::start();
    let (near, far) = (sockets(), sockets());
    let listener = far.listen(PORT, 8).unwrap();
    let pairs: Vec<_> = (0..3).map(|_| connected(&near, &far, &listener)).collect();
    thread::scope(|scope| {
        for (near, far) in &pairs {
            // Two threads an end: each message comes to one of them.
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0..200_u32 {
                        let len = if number % 50 == 0 { 40_000 } else { 100 };
                        near.send(&bytes(len), NONE, None).unwrap();
                        near.recv(&mut [0; 8], NONE, None).unwrap();
                    }
                });
                scope.spawn(|| {
                    let mut into = vec![0; 40_000];
                    for _ in 0..200 {
                        let len = far.recv(&mut into, NONE, None).unwrap();
                        assert_eq!(into[..len], bytes(len));
                        far.send(b"seen", NONE, None).unwrap();
                    }
                });
            }
        }
    });
}

#[test]
fn a_peer_that_goes_without_a_word_is_a_named_error_after_what_it_had_sent() {
    let _watchdog = Watchdog::start();
    let (near, far) = (sockets(), sockets());
    let listener = far.listen(PORT, 1).unwrap();
    let (connection, accepted) = connected(&near, &far, &listener);
    connection.send(b"last words", NONE, None).unwrap();
    connection.send(&bytes(20_000), NONE, None).unwrap();
    drop((near, connection));
    let mut into = vec![0; 20_000];
    assert_eq!(accepted.recv(&mut into, NONE, None).unwrap(), 10);
    let said = accepted.recv(&mut into, NONE, None).unwrap_err();
    assert!(matches!(said, Error::Gone(_)), "{said}");
    let said = accepted.send(b"anybody?", NONE, None).unwrap_err();
    assert!(matches!(said, Error::Gone(_)), "{said}");
    assert!(matches!(accepted.close(None), Err(Error::Gone(_))));
}
