//! Random weights: whatever the lengths of frames and however many contexts it has, a process that always has something to send gets what
//! its weight says.

use hg_na::Identity;

use super::{Kind, PartyKey, identity, kind, next, open, switch};
use crate::{
    machine::{Quota, Switch},
    wire::{FRAME_MAX, HEADER_LEN, Header, Hello, RETURN_MIN, WINDOW, YOURS, cost},
};

/// Connections of each, all to one target: they hold more than a turn of the largest weight.
const CONNECTIONS: u32 = 4;
const SENDERS: usize = 4;
const WEIGHT_MAX: u64 = 8;
const CONTEXTS_MAX: u64 = 4;

struct Sender {
    contexts: Vec<Context>,
    weight: u64,
    /// What of it has come to the target, in bytes.
    came: u64,
}

struct Context {
    key: PartyKey,
    /// By its ids of its connections, from 1 on: what it may send.
    left: [u32; CONNECTIONS as usize],
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 33
}

impl Context {
    fn arrive(switch: &mut Switch, of: i32, (name, quota): (&str, Quota)) -> Self {
        let key = switch.arrived(Identity::process(of, 7), quota);
        switch.handle(key, Hello { listens: false, name }.frame());
        assert_eq!(kind(switch, key), Some(Kind::Welcome));
        for id in 1..=CONNECTIONS {
            open(switch, key, id, "visor://target/0@tcp://here:1");
            assert_eq!(kind(switch, key), Some(Kind::Opened));
        }
        Self { key, left: [WINDOW; CONNECTIONS as usize] }
    }

    /// Takes what it is told, and sends as much as it may, in frames of random lengths.
    fn send(&mut self, switch: &mut Switch, state: &mut u64) {
        while let Some((header, _)) = next(switch, self.key) {
            let at = usize::try_from((header.id ^ YOURS) - 1).unwrap();
            self.left[at] += u32::try_from(header.word).unwrap();
        }
        for (id, left) in (1..).zip(&mut self.left) {
            loop {
                let any = usize::try_from(random(state)).unwrap();
                let len = HEADER_LEN + any % (FRAME_MAX - HEADER_LEN);
                if *left < cost(len) {
                    break;
                }
                *left -= cost(len);
                let body = vec![0; len - HEADER_LEN];
                switch.handle(self.key, Header::new(Kind::Data, id, 0).frame(&body));
            }
        }
    }
}

impl Sender {
    /// A process of so many contexts.
    fn arrive(switch: &mut Switch, number: usize, (weight, contexts): (u64, u32)) -> Self {
        let weight_of_it = u32::try_from(weight).unwrap();
        let quota = Quota { weight: weight_of_it, connections: CONNECTIONS * contexts };
        let pid = i32::try_from(number).unwrap() + 1;
        let contexts = (0..contexts)
            .map(|context| Context::arrive(switch, pid, (&format!("s{number}/{context}"), quota)));
        Self { contexts: contexts.collect(), weight, came: 0 }
    }

    fn send(&mut self, switch: &mut Switch, state: &mut u64) {
        self.contexts.iter_mut().for_each(|it| it.send(switch, state));
    }
}

#[test]
fn a_process_that_always_has_something_to_send_gets_what_its_weight_says() {
    for seed in 1..=20 {
        let mut state = u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15);
        run(&mut state);
    }
}

fn run(state: &mut u64) {
    let switch = &mut switch();
    let target = switch.arrived(identity(7), Quota { weight: 1, connections: 1000 });
    switch.handle(target, Hello { listens: true, name: "target/0" }.frame());
    assert_eq!(kind(switch, target), Some(Kind::Welcome));
    // Whose an id of the target's is, and what is to be given back over it.
    let (mut senders, mut owed) = (Vec::new(), std::collections::HashMap::new());
    for number in 0..SENDERS {
        let weight = 1 + random(state) % WEIGHT_MAX;
        let contexts = 1 + u32::try_from(random(state) % CONTEXTS_MAX).unwrap();
        senders.push(Sender::arrive(switch, number, (weight, contexts)));
        while let Some((incoming, _)) = next(switch, target) {
            owed.insert(incoming.id, (number, 0));
        }
    }
    for _ in 0..4000 {
        senders.iter_mut().for_each(|sender| sender.send(switch, state));
        let (header, body) = next(switch, target).unwrap();
        let (sender, back) = owed.get_mut(&header.id).unwrap();
        senders[*sender].came += (HEADER_LEN + body.len()) as u64;
        *back += cost(HEADER_LEN + body.len());
        if *back >= RETURN_MIN {
            let word = u64::from(std::mem::take(back));
            let id = header.id ^ YOURS;
            switch.handle(target, Header::new(Kind::Window, id, word).frame(&[]));
        }
        for (one, other) in senders.iter().zip(&senders[1..]) {
            let apart = (one.came * other.weight).abs_diff(other.came * one.weight);
            // A turn, and what is left of one.
            let most = 2 * FRAME_MAX as u64 * one.weight * other.weight;
            let [of_one, of_other] = [one, other].map(|it| (it.weight, it.came));
            assert!(apart <= most, "weights and bytes: {of_one:?}, {of_other:?}");
        }
    }
}
