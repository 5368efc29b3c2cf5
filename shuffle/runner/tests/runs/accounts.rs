//! What the ranks that are left say of a run that broke off, and whether all of it adds up to what was sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hg_job::NodeMap;
use hg_shuffle::route::{Came, Next, Routes};
use serde_json::Value;

use crate::common::Outcome;

/// The last words of each rank that is left.
pub(crate) struct Accounts {
    map: Arc<NodeMap>,
    of: BTreeMap<u32, Value>,
}

impl Accounts {
    pub(crate) fn of(outcome: &Outcome, map: &str) -> Self {
        let number = |line: &Value| u32::try_from(line["rank"].as_u64().expect("a rank's line"));
        let lines = outcome.lines().into_iter().filter(|line| !line["failed_rank"].is_null());
        let of = lines.map(|line| (number(&line).unwrap(), line)).collect();
        Self { map: Arc::new(map.parse().unwrap()), of }
    }

    pub(crate) fn ranks(&self) -> Vec<u32> {
        self.of.keys().copied().collect()
    }

    /// Nothing repeated, changed or out of its turn; every message delivered, in doubt or dropped, and said to be.
    pub(crate) fn assert_exact(&self) {
        for (rank, said) in &self.of {
            let wrong = ["lost", "repeated", "corrupted"].map(|name| said[name].as_u64());
            assert_eq!(wrong, [Some(0); 3], "{said}");
            assert!(said["hop"].as_str().is_some_and(|hop| !hop.is_empty()), "{said}");
            self.assert_balanced(*rank, said);
            let mut lost = 0;
            for to in 0..self.map.size() {
                lost += self.assert_pair(*rank, said, to);
            }
            assert_eq!(number(&said["in_doubt"]) + number(&said["dropped"]), lost, "{said}");
        }
    }

    /// As much came as went, all in all and between two that are left.
    fn assert_balanced(&self, rank: u32, said: &Value) {
        let account = &said["account"];
        let ways = account["ways"].as_array().unwrap();
        let all = |name: &str| ways.iter().map(|way| number(&way[name])).sum::<u64>();
        let came = sum(&account["sent"]) + number(&account["copies"]) + all("received");
        let (delivered, undelivered) =
            (number(&account["delivered"]), number(&account["undelivered"]));
        assert_eq!(came, delivered + undelivered + all("messages"), "{said}");
        assert_eq!((delivered, undelivered), (sum(&said["received"]), 0), "{said}");
        for way in ways {
            let [messages, acknowledged, dropped, unanswered, waiting] =
                ["messages", "acknowledged", "dropped", "unanswered", "waiting"]
                    .map(|name| number(&way[name]));
            assert_eq!((messages, waiting), (acknowledged + dropped + unanswered, 0), "{said}");
            let Some(received) = self.received(rank, way) else {
                assert_eq!(way["is_gone"], true, "{said}");
                continue;
            };
            if way["is_gone"] == true {
                let may_have_come = acknowledged..=acknowledged + unanswered;
                assert!(may_have_come.contains(&received), "{received} came: {way} of {said}");
            } else {
                assert_eq!(
                    (received, dropped, unanswered),
                    (acknowledged, 0, 0),
                    "{way} of {said}"
                );
            }
        }
    }

    /// What the rank at the other end of a way says that it got by it.
    fn received(&self, rank: u32, way: &Value) -> Option<u64> {
        let other = self.of.get(&u32::try_from(number(&way["rank"])).unwrap())?;
        let mut ways = other["account"]["ways"].as_array().unwrap().iter();
        let back = ways.find(|back| back["rank"] == rank && back["hop"] == way["hop"]);
        Some(number(&back.expect("every way leads both ways")["received"]))
    }

    /// What was sent to one rank has arrived there, unless its way is broken: then, how much must be in doubt or
    /// dropped.
    fn assert_pair(&self, from: u32, said: &Value, to: u32) -> u64 {
        let count = |name: &str| number(&said["account"][name][to as usize]);
        let (sent, confirmed, dropped) = (count("sent"), count("confirmed"), count("dropped"));
        let received = self.of.get(&to).map(|other| number(&other["received"][from as usize]));
        if !self.is_broken(from, to) {
            assert_eq!((received, dropped), (Some(sent), 0), "from {from} to {to}: {said}");
            return 0;
        }
        if let Some(received) = received {
            let may_have_come = confirmed..=sent - dropped;
            assert!(may_have_come.contains(&received), "{received} came to {to}: {said}");
        }
        sent - confirmed
    }

    /// Whether the way of a message leads through a rank that is not left, or between two that have lost one another.
    fn is_broken(&self, from: u32, to: u32) -> bool {
        let (mut at, mut came) = (from, Came::FromHere);
        let mut passed = vec![from];
        loop {
            (at, came) = match Routes::new(Arc::clone(&self.map), at).next(came, to).unwrap() {
                Next::Deliver => break,
                Next::Origin { rank } => (rank, Came::FromNode),
                Next::Network { rank, .. } => (rank, Came::FromNetwork),
                Next::Relay { rank } => (rank, Came::Relayed),
            };
            passed.push(at);
        }
        passed.windows(2).any(|pair| self.is_lost(pair[0], pair[1]))
            || passed.iter().any(|rank| !self.of.contains_key(rank))
    }

    fn is_lost(&self, from: u32, to: u32) -> bool {
        let ways = self.of.get(&from).and_then(|said| said["account"]["ways"].as_array());
        ways.is_some_and(|ways| ways.iter().any(|way| way["rank"] == to && way["is_gone"] == true))
    }

    /// Which ranks those that are left hold for the one that failed first.
    pub(crate) fn failed(&self) -> BTreeSet<u64> {
        self.of.values().map(|said| number(&said["failed_rank"])).collect()
    }
}

/// All ranks but one are left, name that one, and account for everything.
pub(crate) fn assert_accounts(outcome: &Outcome, dead: u32, map: &str) {
    let accounts = Accounts::of(outcome, map);
    let others: Vec<u32> = (0..accounts.map.size()).filter(|rank| *rank != dead).collect();
    assert_eq!(accounts.ranks(), others, "{}", outcome.all());
    assert_eq!(accounts.failed(), BTreeSet::from([dead.into()]), "{}", outcome.all());
    accounts.assert_exact();
    let sentence = format!("rank {dead} failed (");
    assert_eq!(outcome.err.matches(&sentence).count(), others.len(), "{}", outcome.all());
    assert_eq!(outcome.err.matches("are in doubt").count(), others.len(), "{}", outcome.all());
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a count")
}

fn sum(values: &Value) -> u64 {
    values.as_array().unwrap().iter().map(number).sum()
}
