//! What a domain can be told when it is opened.

use std::collections::BTreeMap;

use hg_na::Error;
use hg_na_frames::common::{BOUNDS, Bounds, RMA};
use hg_na_parts::Reader;

use crate::{address::wanted, card::Wanted, choice::Flags, spread::PORTS_MAX};

/// Setting: the ports over which peers are spread, `DEVICE[:PORT]` with commas between them.
pub(crate) const DEVICE: &str = "device";
/// Setting: `shared`: the contexts of two processes use one queue pair; `own`: each connection has its own.
pub(crate) const QUEUE_PAIRS: &str = "queue-pairs";
/// Setting: put and get of so many bytes are one-sided.
pub(crate) const RMA_FROM: &str = "rma-from";
/// Setting: the operations that move bytes, as in `RC|SEND|WRITE`.
pub(crate) const OPERATIONS: &str = "operations";
/// Setting: one in so many posts of a queue pair asks for its completion.
pub(crate) const SIGNAL_EVERY: &str = "signal-every";

const OWN: [&str; 6] = [DEVICE, OPERATIONS, QUEUE_PAIRS, SIGNAL_EVERY, RMA, RMA_FROM];
const EVERY: usize = 32;
/// One message costs less than a registration and an answer.
const LENT_MIN: usize = 32 << 10;

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) bounds: Bounds,
    /// The ports that are named; none: the URL says which.
    pub(crate) devices: Vec<Wanted>,
    pub(crate) signal_every: u32,
    /// Whether connections share queue pairs.
    pub(crate) shares: bool,
    /// Which operations move bytes; shorter transfers than this travel in frames.
    pub(crate) moves: (Flags, u64),
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("verbs", &[&OWN[..], &BOUNDS].concat(), settings)?;
        let every = reader.count(SIGNAL_EVERY, EVERY)?;
        // Half a queue's places are fewer in any case.
        let signal_every = u32::try_from(every).unwrap_or(u32::MAX);
        let shares = reader.switch(QUEUE_PAIRS, "shared", "own", true)?;
        let rma_from = reader.count(RMA_FROM, LENT_MIN)? as u64;
        let devices = reader.text(DEVICE).map_or(Ok(Vec::new()), devices)?;
        let wrong = |why: &str| Reader::bad(OPERATIONS, why);
        let flags = reader.text(OPERATIONS).map_or(Ok(Flags::ALL), Flags::read).map_err(wrong)?;
        let flags = if reader.switch(RMA, "on", "off", true)? { flags } else { Flags::SENDS };
        let bounds = Bounds::read(&reader)?;
        Ok(Self { bounds, devices, signal_every, shares, moves: (flags, rma_from) })
    }
}

fn devices(text: &str) -> Result<Vec<Wanted>, Error> {
    let wrong = |why: &str| Reader::bad(DEVICE, why);
    let all: Vec<_> =
        text.split(',').map(|it| wanted(it).map_err(wrong)).collect::<Result<_, _>>()?;
    let is_twice = |(at, it): (usize, &Wanted)| all[..at].contains(it);
    if all.iter().any(|it| it.device.is_none()) || all.iter().enumerate().any(is_twice) {
        return Err(wrong(
            "it takes names of different ports, as in rxe0,rxe1 or mlx5_0:1,mlx5_0:2",
        ));
    }
    if all.len() > PORTS_MAX {
        return Err(wrong("it takes 8 ports at most"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use hg_na_frames::common::{CONNECT_TIMEOUT_MS, MAX_PEERS, SILENCE_BOUND_MS};

    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, Error> {
        Settings::read(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn unknown_names_and_bad_values_are_refused() {
        assert!(matches!(read("colour", "red"), Err(Error::UnknownSetting { .. })));
        assert!(read("routing", "off").is_ok(), "there is but one way");
        for (name, value) in [
            (CONNECT_TIMEOUT_MS, "0"),
            (MAX_PEERS, "many"),
            (SILENCE_BOUND_MS, "2999"),
            (SIGNAL_EVERY, "0"),
            (RMA, "perhaps"),
            (QUEUE_PAIRS, "some"),
            (RMA_FROM, "0"),
            (OPERATIONS, "UD|SEND"),
            (OPERATIONS, ""),
            (DEVICE, ""),
            (DEVICE, "rxe0,"),
            (DEVICE, "rxe0,rxe0"),
            (DEVICE, "rxe0:x"),
            (DEVICE, "a,b,c,d,e,f,g,h,i"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        assert_eq!(read(SIGNAL_EVERY, "1").unwrap().signal_every, 1);
        assert_eq!(read(DEVICE, "rxe0,mlx5_0:2").unwrap().devices.len(), 2);
        assert!(!read(QUEUE_PAIRS, "own").unwrap().shares);
    }
}
