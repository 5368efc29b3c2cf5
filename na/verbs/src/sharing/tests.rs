//! Processes that dial each other in every order, over pairs that are queues of words and lifelines that are queues of records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::*;

const PROCESSES: usize = 3;

/// A line's end: its process and number.
type End = (usize, u32);
/// A pair's end.
type Card = (usize, u32);

#[derive(Debug)]
enum Record {
    Hello { pair: (u32, u64), tokens: Vec<u64>, shares: bool },
    Welcome { line: u32, pair: (u32, u64), other: u64, shares: bool },
    Goodbye,
}

#[derive(Debug, Default)]
struct Queue {
    /// Where what is sent goes.
    to: Option<Card>,
    /// What has been sent: a word, and whose message it is.
    sent: VecDeque<(u32, Option<End>)>,
}

/// One lifeline: the dialling end, then the other, and what each has to read.
#[derive(Debug)]
struct Lifeline {
    ends: [Option<End>; 2],
    unread: [VecDeque<Record>; 2],
    to: usize,
}

#[derive(Debug)]
struct World {
    processes: Vec<Sharing>,
    cards: BTreeMap<Card, Queue>,
    lifelines: Vec<Lifeline>,
    partners: BTreeMap<End, End>,
    joined: BTreeSet<End>,
    /// Lines that have ended without their user's will, and not as their other end's did.
    cut: BTreeSet<End>,
    /// An end that was dialling has hung up: others may have waited for its pair.
    was_abandoned: bool,
    /// A port was lost: whoever has asked its process to close a pair waits in vain.
    has_lost_port: bool,
    next: u32,
    taken: usize,
}

fn ip() -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, 1]))
}

impl World {
    fn new(shares: [bool; PROCESSES]) -> Self {
        Self {
            processes: shares.into_iter().map(Sharing::new).collect(),
            cards: BTreeMap::new(),
            lifelines: Vec::new(),
            partners: BTreeMap::new(),
            joined: BTreeSet::new(),
            cut: BTreeSet::new(),
            was_abandoned: false,
            has_lost_port: false,
            next: 100,
            taken: 0,
        }
    }

    fn card(&mut self, process: usize, to: Option<Card>) -> (u32, u64) {
        self.next += 1;
        self.cards.insert((process, self.next), Queue { to, ..Queue::default() });
        (self.next, u64::from(self.next) + 1_000_000)
    }

    fn dial(&mut self, from: usize, to: usize) {
        let line = self.processes[from].open(true);
        let pair = self.card(from, None);
        let tokens = self.processes[from].offer(line, pair, ip());
        let shares = self.processes[from].shares;
        let unread = [VecDeque::new(), VecDeque::from([Record::Hello { pair, tokens, shares }])];
        self.lifelines.push(Lifeline { ends: [Some((from, line)), None], unread, to });
    }

    /// An end of a lifeline reads its next record; says whether there was one.
    fn read(&mut self, lifeline: usize, reader: usize) -> bool {
        let Some(record) = self.lifelines[lifeline].unread[reader].pop_front() else {
            return false;
        };
        let (ends, to) = (self.lifelines[lifeline].ends, self.lifelines[lifeline].to);
        match record {
            Record::Hello { pair, tokens, shares } => {
                self.greeted(lifeline, (pair, tokens, shares))
            }
            Record::Welcome { line, pair: (number, token), other, shares } => {
                let Some(end) = ends[0] else { return true };
                let far = Far { number, token, ip: ip(), shares };
                let mut effects = Vec::new();
                match self.processes[end.0].welcome(end.1, other, (far, line), &mut effects) {
                    Some((own, true)) => {
                        self.cards.get_mut(&(end.0, own)).expect("there").to = Some((to, number));
                    }
                    Some((_, false)) => {}
                    None => self.hang_up(lifeline, 0, true),
                }
                self.act(end.0, effects);
            }
            Record::Goodbye => self.hang_up(lifeline, reader, false),
        }
        true
    }

    fn greeted(&mut self, lifeline: usize, (pair, tokens, shares): ((u32, u64), Vec<u64>, bool)) {
        let (Some(from), to) = (self.lifelines[lifeline].ends[0], self.lifelines[lifeline].to)
        else {
            return;
        };
        let line = self.processes[to].open(false);
        let own = match self.processes[to].hello(line, (from.1, ip()), &tokens) {
            Some(own) => (own, self.processes[to].pairs[&own].token),
            None => {
                let own = self.card(to, Some((from.0, pair.0)));
                let far = Far { number: pair.0, token: pair.1, ip: ip(), shares };
                self.processes[to].made(line, own, (far, from.1));
                own
            }
        };
        self.lifelines[lifeline].ends[1] = Some((to, line));
        self.partners.insert(from, (to, line));
        self.partners.insert((to, line), from);
        let other = self.processes[to].far_token(own.0).expect("it is met");
        let shares = self.processes[to].shares;
        self.lifelines[lifeline].unread[0].push_back(Record::Welcome {
            line,
            pair: own,
            other,
            shares,
        });
    }

    fn hang_up(&mut self, lifeline: usize, who: usize, is_cut: bool) {
        let Some(end) = self.lifelines[lifeline].ends[who].take() else { return };
        self.was_abandoned |= who == 0 && !self.joined.contains(&end);
        // Where the other end has hung up it is no surprise.
        if is_cut && self.lifelines[lifeline].ends[1 - who].is_some() {
            self.cut.insert(end);
        }
        self.lifelines[lifeline].unread[1 - who].push_back(Record::Goodbye);
        let mut effects = Vec::new();
        self.processes[end.0].ended(end.1, is_cut, &mut effects);
        self.act(end.0, effects);
    }

    /// The port of a process is lost: every pair of it is in error.
    fn lose_port(&mut self, process: usize) {
        // Others may have waited for its pairs.
        (self.was_abandoned, self.has_lost_port) = (true, true);
        let all: Vec<Card> = self.cards.keys().copied().filter(|card| card.0 == process).collect();
        for card in all {
            let mut effects = Vec::new();
            self.processes[process].broke(card.1, &mut effects);
            self.act(process, effects);
        }
    }

    /// What was awaited is awaited no longer.
    fn give_up_waiting(&mut self) {
        for (process, number) in self.cards.keys().copied().collect::<Vec<Card>>() {
            let mut effects = Vec::new();
            self.processes[process].late(number, &mut effects);
            self.act(process, effects);
        }
    }

    /// The next word of a card arrives.
    fn carry(&mut self, from: Card) -> bool {
        let Some(to) = self.cards.get(&from).and_then(|queue| queue.to) else { return false };
        if self.cards.get(&to).is_some_and(|queue| queue.to.is_none()) {
            // It is not ready, and will be, or be destroyed.
            return false;
        }
        let queue = self.cards.get_mut(&from).expect("there");
        let Some((word, message)) = queue.sent.pop_front() else { return false };
        let mut effects = Vec::new();
        if !self.cards.contains_key(&to) {
            self.processes[from.0].broke(from.1, &mut effects);
            self.act(from.0, effects);
            return true;
        }
        let line = self.processes[to.0].heard(to.1, word, &mut effects);
        if let Some(sender) = message
            && let Some(line) = line
        {
            assert_eq!(
                self.partners.get(&(to.0, line)),
                Some(&sender),
                "a message of another line"
            );
            self.taken += 1;
        }
        self.act(to.0, effects);
        true
    }

    fn act(&mut self, process: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Say { pair, word } => {
                    let card = self.cards.get_mut(&(process, pair)).expect("a pair that is there");
                    assert!(card.to.is_some(), "it is connected");
                    card.sent.push_back((word, None));
                }
                Effect::Joined { line } => {
                    assert!(self.joined.insert((process, line)), "once");
                }
                Effect::Cut { line } => {
                    let is_of = |it: &Lifeline| {
                        it.ends.iter().position(|end| *end == Some((process, line)))
                    };
                    let found = self
                        .lifelines
                        .iter()
                        .enumerate()
                        .find_map(|(at, it)| Some((at, is_of(it)?)));
                    let (lifeline, who) = found.expect("a line that has a lifeline");
                    self.hang_up(lifeline, who, true);
                }
                // What was sent arrives first.
                Effect::Leave { pair } => {
                    while self.carry((process, pair)) {}
                    self.cards.remove(&(process, pair));
                }
                Effect::Destroy { pair } => drop(self.cards.remove(&(process, pair))),
                Effect::Await { .. } => {}
            }
        }
    }

    /// Every line that is joined sends a message with the number that its partner is known by.
    fn send_all(&mut self) {
        for end in self.joined.clone() {
            let (Some(line), Some(partner)) =
                (self.processes[end.0].lines.get(&end.1), self.partners.get(&end))
            else {
                continue;
            };
            assert_eq!(line.theirs, Some(partner.1));
            let pair = line.pair.expect("met");
            let card = self.cards.get_mut(&(end.0, pair)).expect("a joined line has a pair");
            card.sent.push_back((partner.1, Some(end)));
        }
    }

    fn is_moved_by(&mut self, choice: usize) -> bool {
        let (lifelines, cards) = (self.lifelines.len() * 2, self.cards.len());
        if lifelines + cards == 0 {
            return false;
        }
        let choice = choice % (lifelines + cards);
        if choice < lifelines {
            return self.read(choice / 2, choice % 2);
        }
        let card = *self.cards.keys().nth(choice - lifelines).expect("so many");
        self.carry(card)
    }

    /// Everything that is under way arrives.
    fn settle(&mut self) {
        loop {
            let all = self.lifelines.len() * 2 + self.cards.len();
            let moved = (0..all).filter(|choice| self.is_moved_by(*choice)).count();
            if moved == 0 {
                return;
            }
        }
    }
}

#[test]
fn lines_of_two_processes_share_one_pair_even_if_all_dial_at_once() {
    let mut world = World::new([true; PROCESSES]);
    (0..256).for_each(|_| world.dial(0, 1));
    world.settle();
    assert_eq!(world.joined.len(), 512);
    assert_eq!((world.processes[0].pairs.len(), world.processes[1].pairs.len()), (1, 1));
    assert_eq!(world.cards.len(), 2, "offers that were not needed are gone");
}

#[test]
fn lines_of_processes_that_share_nothing_have_a_pair_each() {
    for shares in [[false, true, true], [true, false, true]] {
        let mut world = World::new(shares);
        (0..16).for_each(|_| world.dial(0, 1));
        world.settle();
        assert_eq!((world.joined.len(), world.cards.len()), (32, 32));
    }
}

#[test]
fn a_stranger_who_names_anothers_pair_is_told_nothing_over_it() {
    let mut world = World::new([true; PROCESSES]);
    world.dial(0, 1);
    world.settle();
    let stolen = world.processes[0].pairs.values().next().expect("one").token;
    // He says that he has the first one's pair.
    let pair = world.card(2, None);
    let line = world.processes[2].open(true);
    world.processes[2].offer(line, pair, ip());
    let theirs = world.processes[1].open(false);
    let taken = world.processes[1].hello(theirs, (line, ip()), &[stolen]);
    assert!(taken.is_some(), "it is believed so far");
    world.settle();
    assert!(!world.joined.contains(&(1, theirs)), "nothing is sent for it");
}

#[test]
fn a_stranger_of_another_machine_than_a_pair_leads_to_gets_no_line_on_it() {
    let mut world = World::new([true; PROCESSES]);
    world.dial(0, 1);
    world.settle();
    // He was told it in a greeting, which was meant for another pair to his own machine.
    let stolen = world.processes[0].pairs.values().next().expect("one").token;
    let from = Some(IpAddr::from([10, 0, 0, 2]));
    for from in [from, None] {
        let theirs = world.processes[1].open(false);
        assert_eq!(world.processes[1].hello(theirs, (FIRST_LINE, from), &[stolen]), None);
    }
}

#[test]
fn a_stranger_who_welcomes_on_anothers_pair_has_nothing_said_over_it() {
    let mut world = World::new([true; PROCESSES]);
    world.dial(0, 1);
    world.settle();
    let (own, pair) = world.processes[0].pairs.iter().next().expect("one");
    let (own, token, far) = (*own, pair.token, pair.far.expect("it is met"));
    // He is told the token, and sees the number of its other end.
    let offered = world.card(0, None);
    let line = world.processes[0].open(true);
    assert_eq!(world.processes[0].offer(line, offered, ip()), [token]);
    let claimed = Far { token: far.token + 1, ..far };
    for theirs in [1, FIRST_LINE] {
        let mut effects = Vec::new();
        let met = world.processes[0].welcome(line, token, (claimed, theirs), &mut effects);
        assert_eq!((met, effects), (None, Vec::new()));
    }
    let mut effects = Vec::new();
    let met = world.processes[0].welcome(line, token, (far, FIRST_LINE), &mut effects);
    assert_eq!(met, Some((own, false)), "who has it is welcome on it");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lines_open_carry_their_own_messages_and_leave_nothing_in_any_order(
        shares in any::<[bool; PROCESSES]>(),
        moves in proptest::collection::vec((0_u8..12, 0_usize..5_000), 1..400),
    ) {
        let mut world = World::new(shares);
        for (kind, choice) in moves {
            match kind {
                0 => world.dial(choice % PROCESSES, (choice / 7) % PROCESSES),
                1 if !world.lifelines.is_empty() => {
                    let lifeline = choice % world.lifelines.len();
                    world.hang_up(lifeline, choice / 1_000 % 2, false);
                }
                2 => world.send_all(),
                // One in ten of those that are drawn.
                3 if choice % 10 == 0 => world.lose_port(choice / 10 % PROCESSES),
                _ => drop(world.is_moved_by(choice)),
            }
        }
        world.settle();
        let refused = world.cut.len();
        prop_assert!(refused == 0 || world.was_abandoned, "{refused} lines were cut that nobody had ended");
        let open: Vec<End> = world.lifelines.iter().flat_map(|it| it.ends).flatten().collect();
        for end in open {
            prop_assert!(world.joined.contains(&end), "{end:?} is open, and not joined");
        }
        let before = world.taken;
        world.send_all();
        world.settle();
        prop_assert_eq!(world.taken - before, world.lifelines.iter().flat_map(|it| it.ends).flatten().count());
        for lifeline in 0..world.lifelines.len() {
            world.hang_up(lifeline, 0, false);
            world.settle();
        }
        if world.has_lost_port {
            world.give_up_waiting();
        }
        prop_assert!(world.cards.is_empty(), "pairs are left: {world:?}");
        prop_assert!(world.processes.iter().all(|it| it.pairs.is_empty() && it.lines.is_empty()));
    }
}
