//! Entry point of the fuzz target `verbs_hub`: peers that say anything of pairs and lines, in any order.

use super::{Effect, Far, Phase, Sharing};

/// Numbers are small, so that they meet.
const NUMBERS: u32 = 24;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u32 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u32::from(*first)
    }

    fn number(&mut self) -> u32 {
        self.next() % NUMBERS
    }

    fn far(&mut self) -> Far {
        let (number, token, shares) =
            (self.number(), self.number().into(), self.next().is_multiple_of(2));
        Far { number, token, ip: Some([10, 0, 0, 1].into()), shares }
    }
}

/// Any bytes: the first one says whether pairs are shared, the others what is said.
pub fn fuzz_sharing(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut sharing = Sharing::new(bytes.next().is_multiple_of(2));
    // Lines that are dialling, and all that are open; pairs that were made.
    let (mut dialling, mut open, mut made) = (Vec::new(), Vec::new(), 1_000);
    let mut effects = Vec::new();
    while !bytes.0.is_empty() && open.len() < 256 {
        match bytes.next() % 7 {
            0 => {
                let line = sharing.open(true);
                made += 1;
                sharing.offer(line, (made, made.into()), Some([10, 0, 0, 1].into()));
                dialling.push(line);
                open.push(line);
            }
            1 => {
                let line = sharing.open(false);
                let (theirs, tokens) =
                    (bytes.number(), [bytes.number().into(), bytes.number().into()]);
                let ip = Some([10, 0, 0, 1].into());
                if sharing.hello(line, (theirs, ip), &tokens).is_none() {
                    made += 1;
                    sharing.made(line, (made, made.into()), (bytes.far(), theirs));
                }
                open.push(line);
            }
            2 if !dialling.is_empty() => {
                let line = dialling.swap_remove(bytes.next() as usize % dialling.len());
                let token = (1_000 + bytes.number()).into();
                let met = (bytes.far(), bytes.number());
                if sharing.welcome(line, token, met, &mut effects).is_none() {
                    // As the endpoint does with one who answers what nobody has asked.
                    sharing.ended(line, true, &mut effects);
                    open.retain(|it| *it != line);
                }
            }
            3 if !open.is_empty() => {
                let line = open.swap_remove(bytes.next() as usize % open.len());
                dialling.retain(|it| *it != line);
                sharing.ended(line, bytes.next().is_multiple_of(2), &mut effects);
            }
            4 => sharing.broke(1_000 + bytes.number(), &mut effects),
            5 => sharing.late(1_000 + bytes.number(), &mut effects),
            _ => drop(sharing.heard(1_000 + bytes.number(), bytes.number(), &mut effects)),
        }
        sharing.check(&mut effects);
    }
    for line in open {
        sharing.ended(line, true, &mut effects);
        sharing.check(&mut effects);
    }
    assert!(sharing.lines.is_empty());
    assert!(sharing.pairs.values().all(|pair| pair.phase == Phase::Closing), "a pair is left");
}

impl Sharing {
    /// What holds whatever was said.
    fn check(&self, effects: &mut Vec<Effect>) {
        for (number, pair) in &self.pairs {
            let lines = self.lines.values().filter(|line| line.pair == Some(*number)).count();
            assert_eq!(pair.lines, lines, "lines of a pair are counted wrongly");
            let is_met = pair.far.is_some();
            assert!(
                is_met || matches!(pair.phase, Phase::Offered | Phase::Broken),
                "nobody is there"
            );
            assert!(pair.phase != Phase::Closing || lines == 0, "it closes under a line");
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Joined { line } => {
                    let line = self.lines.get(&line);
                    assert!(line.is_some_and(|line| line.theirs.is_some()), "nobody has met it");
                }
                Effect::Cut { line } => assert!(self.lines.contains_key(&line)),
                Effect::Leave { pair } | Effect::Destroy { pair } => {
                    assert!(!self.pairs.contains_key(&pair), "it is used on");
                }
                Effect::Await { pair } => {
                    assert_eq!(self.pairs.get(&pair).map(|pair| pair.phase), Some(Phase::Closing));
                }
                Effect::Say { .. } => {}
            }
        }
    }
}
