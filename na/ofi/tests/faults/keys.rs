//! The pre-shared key: who has it not is no peer, and what is said on a lifeline is neither read, changed nor said again.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Instant,
};

use hg_na::{Address, Completion, Context, Key, Op, OpenOptions, Plugin as _};
use hg_na_ofi::OfiPlugin;

use super::{greet, until};

const URLS: [&str; 2] = ["ofi+tcp://127.0.0.1", "ofi+shm://"];
const OWN: Option<Key> = Some(Key([7; 32]));

fn open(url: &str, key: Option<Key>) -> Box<dyn Context> {
    let mut options = OpenOptions::listening();
    options.key = key;
    OfiPlugin.open(&Address::new(url).unwrap(), &options).unwrap().context(0).unwrap()
}

/// One message to an address, and how the peer ended, for whoever sent it.
fn refused(from: &mut Box<dyn Context>, to: &Address, there: &mut Box<dyn Context>) -> String {
    let peer = from.lookup(to).unwrap();
    from.post(1, Op::SendUnexpected { to: peer, message: b"secret".to_vec().into() }).unwrap();
    let mut why = None;
    until(&mut [from, there], |seen| {
        let came = seen[1].iter().any(|it| matches!(it, Completion::Unexpected { .. }));
        assert!(!came, "nothing came through");
        why = seen[0].iter().find_map(|it| match it {
            Completion::Gone { reason, .. } => Some(reason.to_string()),
            _ => None,
        });
        why.is_some()
    });
    why.unwrap()
}

#[test]
fn with_the_same_key_two_ends_understand_each_other() {
    for url in URLS {
        let (mut one, mut other) = (open(url, OWN), open(url, OWN));
        greet(&mut one, &mut other);
        greet(&mut other, &mut one);
    }
}

#[test]
fn another_key_or_a_key_on_one_side_only_is_refused_in_words() {
    let other = Some(Key([8; 32]));
    for (origin, target, why) in [
        (OWN, other, "the keys of the two ends differ"),
        (OWN, None, "only the end that connects has a key"),
        (None, OWN, "only the end that is connected to has a key"),
    ] {
        for url in URLS {
            let (mut from, mut to) = (open(url, origin.clone()), open(url, target.clone()));
            let address = to.address().clone();
            let said = refused(&mut from, &address, &mut to);
            assert!(said.contains(why), "{url}: {said}");
            assert!(to.connected().is_empty(), "{url}");
            let mut friend = open(url, target.clone());
            greet(&mut friend, &mut to);
        }
    }
}

/// Passes the bytes of one lifeline on, those of the end that dials changed by `change`; keeps them.
fn relay(
    to: &Address,
    mut change: impl FnMut(&mut [u8], usize) + Send + 'static,
) -> (Address, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("ofi+tcp://{}", listener.local_addr().unwrap());
    let (seen, to) = (Arc::new(Mutex::new(Vec::new())), to.rest().to_owned());
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Both);
        });
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = near.read(&mut buffer) {
            let mut seen = kept.lock().unwrap();
            let before = seen.len();
            seen.extend(&buffer[..len]);
            drop(seen);
            change(&mut buffer[..len], before);
            if far.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(Shutdown::Both);
    });
    (Address::new(&at).unwrap(), seen)
}

/// One message by way of a relay.
fn greet_by(at: &Address, from: &mut Box<dyn Context>, to: &mut Box<dyn Context>) {
    let peer = from.lookup(at).unwrap();
    from.post(1, Op::SendUnexpected { to: peer, message: b"hello".to_vec().into() }).unwrap();
    let came = |it: &Completion| matches!(it, Completion::Unexpected { .. });
    until(&mut [from, to], |seen| seen[1].iter().any(came));
}

#[test]
fn a_watcher_of_the_lifeline_learns_no_key_of_frames_and_without_one_he_does() {
    for (key, shows) in [(OWN, false), (None, true)] {
        let (mut from, mut to) = (open(URLS[0], key.clone()), open(URLS[0], key));
        let (at, seen) = relay(to.address(), |_, _| {});
        greet_by(&at, &mut from, &mut to);
        let seen = seen.lock().unwrap();
        // The greeting begins so; what frames have to carry stands in it.
        assert_eq!(seen.windows(6).any(|it| it == b"hg-ofi"), shows, "{seen:?}");
    }
}

#[test]
fn what_was_said_on_a_lifeline_is_of_no_use_to_who_says_it_again() {
    let (mut from, mut to) = (open(URLS[0], OWN), open(URLS[0], OWN));
    let (at, seen) = relay(to.address(), |_, _| {});
    greet_by(&at, &mut from, &mut to);
    let said = seen.lock().unwrap().clone();
    let mut again = TcpStream::connect(to.address().rest()).unwrap();
    again.write_all(&said).unwrap();
    again.set_nonblocking(true).unwrap();
    let (mut bytes, mut is_over) = (Vec::new(), false);
    until(&mut [&mut to], |_| {
        let read = again.read_to_end(&mut bytes);
        is_over = read.map_or_else(|why| why.kind() != std::io::ErrorKind::WouldBlock, |_| true);
        is_over
    });
    assert_eq!(to.connected().len(), 1, "the one who said it first");
    let mut friend = open(URLS[0], OWN);
    greet(&mut friend, &mut to);
}

#[test]
fn what_is_changed_on_the_way_of_a_lifeline_is_not_taken() {
    for at_byte in [6, 20, 50, 60, 100] {
        let (mut from, mut to) = (open(URLS[0], OWN), open(URLS[0], OWN));
        let (at, _) = relay(to.address(), move |bytes, start| {
            let place = usize::checked_sub(at_byte, start);
            if let Some(byte) = place.and_then(|place| bytes.get_mut(place)) {
                *byte ^= 1;
            }
        });
        refused(&mut from, &at, &mut to);
        let mut done = Vec::new();
        to.progress(Instant::now(), &mut done).unwrap();
        assert!(to.connected().is_empty(), "byte {at_byte} was changed");
    }
}
