//! Messages of which a part has come.

use std::{io::Write as _, net::TcpStream, thread};

use hg_na::GoneReason;
use watchdog::in_time;

use crate::{
    end::{End, LOOPBACK, arrived, gone},
    raw::{UNEXPECTED, frame, greeted_by, header},
};

/// The longest message.
const LONG: usize = 256 << 10;

/// A target that keeps 1 MiB, and so many peers of its.
fn crowd(count: usize) -> (End, Vec<TcpStream>) {
    let mut target = End::open(LOOPBACK, &[("max-held-mib", "1")]);
    let raws = (0..count).map(|_| greeted_by(&mut target)).collect();
    (target, raws)
}

/// Each says a bit in turn, until all has come from all. No time passes.
fn alternately(target: &mut End, raws: &[TcpStream]) {
    let start = std::time::Instant::now();
    for bit in frame(UNEXPECTED, 0, &[7; LONG]).chunks(16 << 10) {
        for mut raw in raws {
            raw.write_all(bit).unwrap();
            target.round_at(start);
        }
    }
    for _ in raws {
        while target.take(arrived).is_none() {
            target.round_at(start);
            in_time!(start);
        }
    }
}

#[test]
fn announced_lengths_of_which_nothing_comes_send_nobody_away() {
    let (mut target, mut raws) = crowd(9);
    let honest = raws.split_off(8);
    let announced = u32::try_from(LONG - 1).unwrap();
    for raw in &mut raws {
        raw.write_all(&header(announced, UNEXPECTED, 0)).unwrap();
    }
    alternately(&mut target, &honest);
    assert_eq!(target.take(gone), None);
}

#[test]
fn peers_whose_messages_come_on_are_not_sent_away_however_many_there_are() {
    let (mut target, raws) = crowd(8);
    alternately(&mut target, &raws);
    assert_eq!(target.take(gone), None);
}

#[test]
fn of_messages_that_do_not_come_on_no_more_is_kept_than_may_be_held() {
    let (mut target, mut raws) = crowd(7);
    let honest = raws.split_off(6);
    let long = frame(UNEXPECTED, 0, &[7; LONG]);
    let (part, last) = long.split_at(long.len() - 1);
    for raw in &raws {
        let (mut raw, part) = (raw.try_clone().unwrap(), part.to_vec());
        let writer = thread::spawn(move || raw.write_all(&part).unwrap());
        while !writer.is_finished() {
            target.round();
        }
        writer.join().unwrap();
    }
    // Whoever goes on meanwhile stays.
    alternately(&mut target, &honest);
    for _ in 0..2 {
        let (_, why) = target.until(gone);
        assert!(matches!(&why, GoneReason::Exhausted(why) if why.contains("memory")), "{why}");
    }
    let written = raws.iter().map(|mut raw| raw.write_all(last));
    assert!(written.filter(Result::is_ok).count() >= 4);
    for _ in 0..4 {
        assert_eq!(target.until(arrived).1, [7; LONG]);
    }
    // What they took is free again: as much comes once more.
    alternately(&mut target, &honest);
    assert_eq!(target.take(gone), None);
}

#[cfg(feature = "tcp-key")]
#[test]
fn sealed_records_of_which_the_rest_does_not_come_count() {
    use hg_na_parts::key::{Exchange, Key, RECORD_MAX};

    use crate::raw::{connect, greeting, hello, read_while};

    let file = crate::keys::KeyFile::new("parts", &"07".repeat(32));
    let mut target = End::open(LOOPBACK, &[("max-held-mib", "1"), ("key-file", file.path())]);
    let mut raws = Vec::new();
    for _ in 0..20 {
        let key = Key::given(&hg_na::Key([7; 32])).unwrap();
        let mut exchange = Exchange::dialling(&key, b"hydrargyrum tcp 1").unwrap();
        let mut raw = connect(&target.text());
        raw.write_all(&greeting(5, &exchange.write().unwrap())).unwrap();
        let second = read_while(&mut raw, 10 + 48, &mut target);
        assert_eq!((second[7], exchange.read(&second[10..])), (6, Ok(())));
        let (mut seal, mut sealed) = (exchange.finish().unwrap(), Vec::new());
        seal.seal(&hello(0), &mut sealed).unwrap();
        seal.seal(&vec![7; RECORD_MAX], &mut sealed).unwrap();
        raw.write_all(&sealed[..sealed.len() - 1]).unwrap();
        raws.push(raw);
    }
    let (_, why) = target.until(gone);
    assert!(matches!(&why, GoneReason::Exhausted(why) if why.contains("memory")), "{why}");
}
