//! The table of common peers: what is left in it, and what becomes of threads' numbers.

use hg_na_conformance::Mem;

use super::*;
use crate::{Builder, Engine, Wait};

fn open(plugin: &Mem, url: &str, contexts: usize) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    builder.contexts(contexts).open(url).unwrap()
}

/// Entries that are in use, and that there are.
fn entries(engine: &Engine) -> (usize, usize) {
    let contexts = &engine.port.shared.contexts;
    let lookups = contexts.lookups.lock();
    let in_use = lookups.by_address.len();
    assert_eq!(in_use, lookups.entries.len());
    let places = contexts.columns.iter().map(|column| column.0.lock().len());
    let all = places.clone().max().unwrap();
    assert!(places.clone().all(|it| it == all));
    (in_use, all)
}

/// Handles of transports whose addresses each context remembers.
fn remembered(engine: &Engine) -> usize {
    let contexts = (0..).map_while(|index| engine.context(index));
    contexts.map(|it| it.port.enter_state().unwrap().protocol.addresses.len()).sum()
}

#[test]
fn a_thousand_lookups_and_forgets_leave_nothing() {
    let plugin = Mem::default();
    let engine = open(&plugin, "mem://", 3);
    for number in 0..1000 {
        // Of few and of many, of those that are there and of others.
        let address = format!("mem://it-{}/0*{}", number % 17, 1 + number % 5);
        let peers: Vec<_> = (0..3).map(|_| engine.lookup(&address).unwrap()).collect();
        assert!(peers.iter().all(|it| *it == peers[0]));
        if number % 3 == 0 {
            engine.forget(engine.lookup(engine.address()).unwrap());
        }
        engine.forget(peers[0]);
        engine.forget(peers[0]);
    }
    let (in_use, all) = entries(&engine);
    assert_eq!((in_use, remembered(&engine)), (0, 0));
    assert!(all <= 2, "{all} entries");
}

#[test]
fn the_entries_of_those_who_have_left_are_used_again() {
    let plugin = Mem::default();
    let engine = open(&plugin, "mem://", 2);
    let stays = open(&plugin, "mem://", 2);
    let kept = engine.lookup(stays.address()).unwrap();
    for number in 0..1000 {
        let leaves = open(&plugin, &format!("mem://leaves-{number}"), 2);
        let peer = engine.lookup(leaves.address()).unwrap();
        assert_ne!(peer, kept);
        leaves.close();
        // The one way to hear of it here: as if each context had called, and found nobody.
        for context in (0..2).map(|index| engine.context(index).unwrap()) {
            let na = engine.port.shared.contexts.known_to(&context.port, &peer);
            context.port.enter_state().unwrap().protocol.addresses.remove(&na);
        }
        assert_eq!(engine.lookup(stays.address()).unwrap(), kept);
    }
    let (_, all) = entries(&engine);
    assert!(all <= 2 * AT_A_TIME, "{all} entries");
    assert_eq!(engine.address_of(&kept).as_ref(), Some(stays.address()));
}

#[test]
fn an_old_peer_is_nobody_to_all_contexts_once_its_entry_is_anothers() {
    let plugin = Mem::default();
    let engine = open(&plugin, "mem://", 2);
    let contexts = &engine.port.shared.contexts;
    let old = engine.lookup("mem://old/0").unwrap();
    engine.forget(old);
    let new = engine.lookup("mem://new/0").unwrap();
    assert_eq!((old.na.index(), old.port), (new.na.index(), new.port));
    for context in (0..2).map(|index| engine.context(index).unwrap()) {
        assert_eq!(contexts.known_to(&context.port, &old), NOBODY);
        assert_ne!(contexts.known_to(&context.port, &new), NOBODY);
    }
    engine.forget(old);
    assert_eq!(engine.address_of(&new).unwrap().as_str(), "mem://new/0");
}

#[test]
fn a_thread_keeps_its_number_and_gives_it_to_who_stands_in_its_place() {
    let own = thread_number::of_this_one();
    assert_eq!(thread_number::of_this_one(), own);
    assert_ne!(std::thread::spawn(thread_number::of_this_one).join().unwrap(), own);
    let mut other = None;
    thread_number::swap(&mut other);
    assert_eq!(other, Some(own));
    assert_ne!(thread_number::of_this_one(), own);
    thread_number::swap(&mut other);
    assert_eq!(thread_number::of_this_one(), own);
}
