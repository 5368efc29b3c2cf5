//! Applications that connect properly, and then write over all memory that they share with their daemon: it goes on or sends them away, and
//! no other application sees an error.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use watchdog::Watchdog;

use crate::{
    common::{Daemon, Process, engine, listening},
    deaths::witness,
    strangers::{DATA, Liar, OPEN, frame},
};

/// Applications that lie, one after the other, each in its own way; and how often each does.
const SEEDS: u64 = 7;
const LIES: u32 = 8;

#[test]
fn an_application_that_overwrites_what_it_shares_with_its_daemon_hurts_nobody_else() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let target = listening(&far, "visor://");
    let (address, stop) = (target.address().to_string(), Arc::default());
    let witnesses =
        [witness(engine(&near), &address, &stop), witness(engine(&far), &address, &stop)];
    let mut found_out = 0;
    let mut lies = |seed: u64| {
        let mut liar = Process::application(&format!("scribble{seed}"), &near.name, &address);
        found_out += liar.hear("found out").parse::<u32>().unwrap();
        near.until("only the witness is left", |status| {
            status["applications"] == 1 && status["connections"] == 1
        });
    };
    lies(0);
    let before = (near.descriptors(), near.mappings());
    (1..SEEDS).for_each(&mut lies);
    watchdog::until("descriptors and mappings are back", || {
        near.descriptors() <= before.0 && near.mappings() <= before.1
    });
    assert!(found_out > 0, "what they wrote was not looked at");
    // Relaxed: only that it ends.
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for witness in witnesses {
        assert!(witness.join().unwrap() > 0);
    }
    assert_eq!(far.status()["disconnected"], 0);
}

/// Xorshift: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.below(u64::MAX).to_le_bytes()).collect()
    }
}

/// What such an application does.
pub(crate) fn liar(seed: &str, daemon: &str, target: &str) {
    let seed: u64 = seed.parse().unwrap();
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed + 1));
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut found_out = 0;
    for lie in 0..LIES {
        let mut liar = Liar::greeted(daemon, &format!("scribbler-{seed}-{lie}/0"));
        liar.say(&[frame(OPEN, 5, 0), target.into()].concat());
        liar.hears(2);
        for _ in 0..8 {
            scribble(seed % 3, &memory, &mut random);
            // Which it may not be able to send.
            let mut data = [frame(DATA, 5, 0), vec![7; 3000]].concat();
            data[1] = 2;
            (0..4).for_each(|_| liar.tries(&data));
            for _ in 0..20 {
                std::thread::yield_now();
                liar.progress();
            }
        }
        found_out += u32::from(liar.gone.is_some());
    }
    println!("\nfound out {found_out}");
}

fn scribble(how: u64, memory: &File, random: &mut Random) {
    for (begin, len) in shared_memory() {
        // The rings are on the first two pages; behind them are messages.
        let pages = len.min(1 << 18) / 4096;
        let most = if random.below(2) == 0 { 2 } else { pages };
        let page = begin + 4096 * random.below(most);
        let (at, bytes) = match how {
            0 => (begin, random.bytes(len.min(1 << 16))),
            1 => (page, random.bytes(4096)),
            _ => (page + 4 * random.below(128), random.bytes(4)[..4].to_vec()),
        };
        // Once the connection is over, its memory is gone.
        let _written_or_not = memory.write_at(&bytes, at);
    }
}

/// Mappings of this process that others see and that it writes: begin and length.
fn shared_memory() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("memfd:"));
    let range = |line: &str| {
        let (begin, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(begin)?, number(end)? - number(begin)?))
    };
    shared.filter_map(range).collect()
}
