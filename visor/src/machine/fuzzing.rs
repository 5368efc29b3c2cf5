//! Entry points of the fuzz targets: what applications, and other daemons, may write to a daemon.

use hg_na::{Address, GoneReason, Identity, Message};

use super::{Effect, Network, PartyKey, Quota, Switch};
use crate::wire::{FRAME_MAX, Header, Hello, WINDOW};

/// Of the applications.
const QUOTA: Quota = Quota { weight: 1, connections: 3 };
/// Where the daemon is.
const NODE: &str = "tcp://node:1";
/// Windows of all connections that there may be, both ways, and notices of what can be asked for in one input.
const BYTES_MAX: u64 = 3 * 2 * 2 * 2 * WINDOW as u64 + (1 << 20);

/// Who writes what it likes.
#[derive(Debug, Clone, Copy)]
enum Liars {
    Applications,
    Daemons,
}

/// Two applications that write what they like to a daemon with an honest one. The input is a list of commands: one byte, whose lowest bit
/// says which of the two, and the next ones what: it dies, and another one comes; what waits is taken; else a frame follows, behind a byte
/// with its length, as it is or filled up to the longest one.
///
/// Checked: what is read as a header encodes to the same bytes. Nobody is ended but who has written. What is sent is frames. What waits is
/// bounded. When all have gone, nothing is left.
pub fn fuzz_applications(bytes: &[u8]) {
    Run::new(Liars::Applications).play(bytes);
}

/// The same with two other daemons.
pub fn fuzz_daemons(bytes: &[u8]) {
    Run::new(Liars::Daemons).play(bytes);
}

struct Run {
    switch: Switch,
    liars: Liars,
    keys: [PartyKey; 2],
    honest: PartyKey,
}

impl Run {
    fn new(liars: Liars) -> Self {
        let address = Address::new(NODE).expect("an address");
        let network = Network { address, frame_max: FRAME_MAX };
        let mut switch = Switch::new(vec![network], None).expect("a short address");
        let honest = switch.arrived(Identity::default(), QUOTA);
        switch.handle(honest, Hello { listens: true, name: "honest/0" }.frame());
        let mut run = Self { switch, liars, keys: [0; 2], honest };
        run.keys = [run.arrive(), run.arrive()];
        run
    }

    fn arrive(&mut self) -> PartyKey {
        match self.liars {
            // Two contexts of one process.
            Liars::Applications => self.switch.arrived(Identity::process(1, 1), QUOTA),
            Liars::Daemons => self.switch.node_arrived(0),
        }
    }

    fn play(&mut self, mut bytes: &[u8]) {
        while let Some((command, rest)) = bytes.split_first() {
            bytes = rest;
            let liar = usize::from(command & 1);
            match command >> 1 & 7 {
                0 => self.die(liar),
                1 => self.take(),
                what => {
                    let Some((len, rest)) = bytes.split_first() else { break };
                    let (frame, rest) = rest.split_at(usize::from(*len).min(rest.len()));
                    bytes = rest;
                    self.write(liar, frame, what == 2);
                }
            }
            self.effects();
            assert!(self.switch.bytes() <= BYTES_MAX, "{} bytes wait", self.switch.bytes());
        }
        for key in [self.keys[0], self.keys[1], self.honest] {
            self.switch.gone(key, &GoneReason::Exited);
        }
        self.effects();
        let Switch { parties, connections, processes, known, names, nodes, .. } = &self.switch;
        assert!(parties.is_empty() && connections.is_empty(), "something is left");
        assert!(names.is_empty() && nodes.is_empty(), "a name is left");
        assert!(processes.is_empty() && known.is_empty(), "a process is left");
    }

    fn die(&mut self, liar: usize) {
        self.switch.gone(self.keys[liar], &GoneReason::Exited);
        self.keys[liar] = self.arrive();
    }

    fn write(&mut self, liar: usize, frame: &[u8], is_filled: bool) {
        let mut frame = frame.to_vec();
        if is_filled {
            frame.resize(FRAME_MAX, 0);
        }
        if let Ok((header, body)) = Header::decode(&frame) {
            assert_eq!([&header.encode()[..], body].concat(), frame);
        }
        self.switch.handle(self.keys[liar], Message::from(frame));
    }

    /// Everything that waits leaves.
    fn take(&mut self) {
        while let Some(key) = self.switch.next_ready() {
            while let Some(outgoing) = self.switch.pop(key) {
                Header::decode(outgoing.frame.as_slice()).expect("what is sent is a frame");
                self.switch.left(outgoing.follows);
            }
        }
    }

    fn effects(&mut self) {
        while let Some(effect) = self.switch.next_effect() {
            match effect {
                Effect::Dial(key, _) => {
                    self.switch.gone(key, &GoneReason::Unreachable("nobody is there".into()));
                }
                Effect::HangUp(key, _) => {
                    let liar = self.keys.iter().position(|it| *it == key);
                    let liar = liar.expect("nobody is ended but who has written");
                    self.keys[liar] = self.arrive();
                }
                Effect::Leave(_) => panic!("no time passes"),
                Effect::EndWithin(_) => self.switch.end(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of the fuzz targets, and all that begins as they do.
    #[test]
    fn what_the_seeds_of_the_fuzz_targets_begin_is_carried_to_its_end() {
        for (name, fuzz) in [
            ("visor_applications", fuzz_applications as fn(&[u8])),
            ("visor_daemons", fuzz_daemons),
        ] {
            let folder = format!("{}/../fuzz/seeds/{name}", env!("CARGO_MANIFEST_DIR"));
            let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
            assert!(!seeds.is_empty());
            for seed in seeds {
                let bytes = std::fs::read(seed.unwrap().path()).unwrap();
                for end in 0..=bytes.len() {
                    fuzz(&bytes[..end]);
                }
            }
        }
    }
}
