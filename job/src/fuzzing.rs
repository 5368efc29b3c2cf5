//! Entry points of the fuzz targets: what ranks, strangers and launchers may write.

use crate::{
    NodeMap,
    frame::{Broken, Down, UP_MAX, Up, split},
    hub::state::{Effect, Hub},
    meeting::Address,
    pmi::wire,
};

/// Ranks of the job: few, so that they meet.
const RANKS: u8 = 3;

/// Connections that write what they like to a hub of three ranks. The input is a list of commands: one byte,
/// of which the last bits say which connection, and whether it hangs up, or whether the bound passes; else
/// a frame follows.
///
/// Checked: a frame that is taken encodes to the same bytes. Nobody is answered who is no member. Once broken
/// it stays so, and no call ends after that. When all have gone, it is over, and it has told why.
pub fn fuzz_hub(mut bytes: &[u8]) {
    let mut run = Run {
        hub: Hub::star(u32::from(RANKS), b"t".to_vec()),
        members: [None; RANKS as usize],
        broken: None,
    };
    while let Some((command, rest)) = bytes.split_first() {
        bytes = rest;
        let connection = usize::from(command % RANKS);
        match command / RANKS {
            0 => run.hang_up(connection),
            1 => run.hub.handle_deadline(),
            _ => match split(bytes, UP_MAX) {
                Ok(Some((body, used))) => {
                    run.frame(connection, body);
                    bytes = &bytes[used..];
                }
                Ok(None) | Err(_) => run.hang_up(connection),
            },
        }
        run.effects();
    }
    for connection in 0..usize::from(RANKS) {
        run.hang_up(connection);
    }
    run.hub.handle_deadline();
    run.effects();
}

struct Run {
    hub: Hub,
    /// The rank that each connection has become.
    members: [Option<u32>; RANKS as usize],
    broken: Option<Broken>,
}

impl Run {
    fn frame(&mut self, connection: usize, body: &[u8]) {
        let Ok(up) = Up::decode(body) else { return self.hang_up(connection) };
        assert_eq!(&up.encode()[4..], body);
        match (self.members[connection], up) {
            (Some(rank), up) => {
                if self.hub.handle(rank, up).is_err() {
                    self.hang_up(connection);
                }
            }
            (None, Up::Hello(hello)) => {
                let said = hello.rank;
                if let Ok(rank) = self.hub.handle_hello(hello) {
                    assert!(
                        rank == said && !self.members.contains(&Some(rank)),
                        "a rank is one connection"
                    );
                    self.members[connection] = Some(rank);
                }
            }
            (None, _) => {}
        }
    }

    fn hang_up(&mut self, connection: usize) {
        if let Some(rank) = self.members[connection].take() {
            self.hub.handle_hang_up(rank);
        }
    }

    fn effects(&mut self) {
        while let Some(effect) = self.hub.poll_effect() {
            let down = match effect {
                Effect::One(rank, down) => {
                    assert!(rank < u32::from(RANKS));
                    down
                }
                Effect::All(down) => down,
                Effect::Up(up) => panic!("rank 0 has nobody above it: {up:?}"),
            };
            let encoded = down.encode();
            let (body, used) =
                split(&encoded, usize::MAX).expect("a whole frame").expect("a whole frame");
            assert_eq!((Down::decode(body).as_ref(), used), (Ok(&down), encoded.len()));
            match down {
                Down::Broken(broken) => {
                    let is_abort = matches!(broken, Broken::Aborted { .. });
                    assert!(
                        is_abort || self.broken.is_none() || self.broken.as_ref() == Some(&broken)
                    );
                    // The first one stays, whatever is told besides.
                    self.broken.get_or_insert(broken);
                }
                Down::Gathered { .. } | Down::Welcome { .. } => assert!(self.broken.is_none()),
                Down::Refused { .. } | Down::Missing { .. } | Down::Post(_) | Down::Taken => {}
                Down::Who { .. } => panic!("ranks are not asked"),
            }
        }
        assert_eq!(self.hub.broken(), self.broken.as_ref());
    }
}

/// Texts of launchers, of rank 0 and of users: refused or taken apart; what is taken reads the same again.
pub fn fuzz_texts(bytes: &[u8]) {
    if let Ok(down) = Down::decode(bytes) {
        assert_eq!(&down.encode()[4..], bytes);
    }
    let _ = wire::packet_length(bytes.get(..6).unwrap_or_default());
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = (wire::Fields::of_line(text), wire::Fields::of_packet(text));
    if let Some(nodes) = wire::mapping(text, 5) {
        assert_eq!(nodes.len(), 5);
    }
    if let Ok(address) = Address::parse(text) {
        assert_eq!(Address::parse(&address.to_text()).ok().as_ref(), Some(&address));
    }
    // A map of millions of ranks is a table of that size: not here.
    if text.len() < 8
        && let Ok(map) = text.parse::<NodeMap>()
        && map.size() <= 10_000
    {
        assert_eq!(map.to_string().parse::<NodeMap>().as_ref(), Ok(&map));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{Hello, What};

    fn hello(rank: u32) -> Up {
        Up::Hello(Hello { token: b"t".to_vec(), rank, size: u32::from(RANKS), host: "h".into() })
    }

    /// What a rank may say: mostly sense.
    fn up() -> impl Strategy<Value = Up> {
        let what = prop_oneof![9 => Just(What::Gather), 1 => Just(What::Barrier)];
        prop_oneof![
            4 => (0..4_u32).prop_map(hello),
            8 => (prop_oneof![Just(""), Just("c")], 0..3_u64, what).prop_map(|(channel, number, what)| {
                Up::Gather { channel: channel.into(), number, what, values: if what == What::Barrier { vec![] } else { vec![vec![1]] } }
            }),
            1 => Just(Up::Bye),
            1 => Just(Up::Abort { code: 7, why: "so".into() }),
            1 => (0..3_u64).prop_map(|number| Up::Who { channel: "c".into(), number }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_hub_keeps_its_promises_whatever_it_is_told(
            joined in any::<bool>(),
            says in prop::collection::vec((0..RANKS, prop::option::weighted(0.95, up()), any::<bool>()), 0..40),
        ) {
            let mut bytes = Vec::new();
            for rank in 0..if joined { RANKS } else { 0 } {
                bytes.push(2 * RANKS + rank);
                bytes.extend(hello(u32::from(rank)).encode());
            }
            for (connection, up, hangs_up) in says {
                match (up, hangs_up) {
                    (Some(up), _) => {
                        bytes.push(2 * RANKS + connection);
                        bytes.extend(up.encode());
                    }
                    (None, true) => bytes.push(connection),
                    (None, false) => bytes.push(RANKS + connection),
                }
            }
            fuzz_hub(&bytes);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            fuzz_hub(&bytes);
            fuzz_texts(&bytes);
        }
    }
}
