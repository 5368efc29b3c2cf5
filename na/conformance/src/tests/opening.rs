//! Domains and contexts: names, settings, several contexts of one domain.

use hg_na::{Address, Availability, Error, Offer, OpenOptions};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    suite::Suite,
    world::{A, B, C, World},
};

pub(crate) fn a_setting_that_nobody_knows_is_refused(suite: &Suite) -> Outcome {
    let options = OpenOptions::listening().with("no-such-setting-of-any-plugin", "1");
    match suite.try_open(&suite.url, &options) {
        Err(Error::BadSetting { name, .. } | Error::UnknownSetting { name, .. })
            if name == "no-such-setting-of-any-plugin" =>
        {
            Ok(())
        }
        other => fail!("an unknown setting: {other:?}"),
    }
}

pub(crate) fn a_name_in_use_is_refused(suite: &Suite) -> Outcome {
    let url = suite.fresh_name();
    let mut world = World::new(suite, 0)?;
    world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
    let second = suite.try_open(&url, &OpenOptions::listening());
    let second = second.and_then(|domain| domain.context(0).map(|_| ()));
    ensure!(matches!(second, Err(Error::AddressInUse(_))), "a name in use: {second:?}");
    world.add(suite.open(&suite.url, &OpenOptions::listening())?, 0)?;
    world.connect(B, A)?;
    world.end()
}

pub(crate) fn what_is_offered_opens_and_what_is_missing_says_why(suite: &Suite) -> Outcome {
    let offers = suite.plugin.offers();
    ensure!(!offers.is_empty(), "nothing is offered, and nothing said to be missing");
    for (place, offer) in offers.iter().enumerate() {
        let Offer { url, settings, .. } = offer;
        ensure!(!offer.plugin.is_empty(), "{url}: an offer of nobody's");
        let taken = suite.plugin.schemes().contains(&url.scheme());
        ensure!(taken, "{url} is offered, and its scheme not taken");
        let same = |other: &Offer| other.url == *url && other.settings == *settings;
        ensure!(!offers[..place].iter().any(same), "{url} {settings:?} is offered twice");
        check_offer(suite, offer)?;
    }
    Ok(())
}

fn check_offer(suite: &Suite, offer: &Offer) -> Outcome {
    let url = &offer.url;
    let opened = suite.once_free(|| {
        let domain = suite.plugin.open(url, &offer.options())?;
        domain.context(0).map(|context| context.address().clone())
    });
    let broken = match (&offer.availability, opened) {
        (Availability::Available, Ok(_)) => return Ok(()),
        (Availability::Available, Err(error)) => {
            format!("{url} is offered, and does not open: {error}")
        }
        (Availability::Missing { why, .. }, opened) => {
            let one_sentence = !why.trim().is_empty() && !why.contains('\n');
            ensure!(one_sentence, "{url} is missing, and why is not one sentence: {why:?}");
            if opened.is_err() {
                return Ok(());
            }
            format!("{url} opens, and is said to be missing: {why}")
        }
        (other, _) => fail!("{url}: the suite does not know {other:?}"),
    };
    // Interfaces come and go: what counts is whether the same is still said.
    let again = suite.plugin.offers();
    let again = again.iter().find(|it| it.url == *url && it.settings == offer.settings);
    ensure!(again.is_none_or(|it| it.availability != offer.availability), "{broken}");
    Ok(())
}

pub(crate) fn a_context_id_is_open_once_at_a_time(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let domain = std::sync::Arc::clone(&world.nodes[A].domain);
    let second = domain.context(0).map(|_| ());
    ensure!(matches!(second, Err(Error::AddressInUse(_))), "an id in use: {second:?}");
    world.close(A);
    world.add(domain, 0)?;
    world.add(suite.open(&suite.url, &OpenOptions::listening())?, 0)?;
    world.connect(B, A)?;
    world.end()
}

pub(crate) fn an_address_names_one_context_of_several(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let domain = suite.open(&suite.url, &OpenOptions::listening())?;
    let contexts = usize::from(domain.caps().max_contexts.min(8));
    for number in 0..contexts {
        // Ids in no order, and not the lowest ones only.
        let id = u8::try_from(number * 5 % 8).expect("below 8");
        let id = if contexts < 8 { u8::try_from(number).expect("below 8") } else { id };
        world.add(std::sync::Arc::clone(&domain), id)?;
    }
    for place in 1..=contexts {
        let (there, back) = world.connect(A, place)?;
        let (receive, _) = world.receive(A, there, 1)?;
        world.answer(place, back, 1, &place.to_le_bytes())?;
        world.received(A, receive, &place.to_le_bytes())?;
    }
    if contexts > 1 {
        // Contexts of one domain reach each other as any others.
        world.connect(B, C)?;
    } else {
        let over = domain.context(1).map(|_| ());
        ensure!(over.is_err(), "a context beyond max_contexts was opened");
    }
    world.end()
}

pub(crate) fn an_address_that_follows_from_another_contexts_is_the_contexts_own(
    suite: &Suite,
) -> Outcome {
    let [own, other] = [(); 2].map(|()| suite.open(&suite.url, &OpenOptions::listening()));
    let (own, other) = (own?, other?);
    let count = u8::try_from(own.caps().max_contexts.min(3)).expect("3 at most");
    let opened = (0..count).map(|id| own.context(id)).collect::<Result<Vec<_>, _>>();
    let contexts = opened.map_err(|error| error.to_string())?;
    for (id, there) in (0..count).zip(&contexts) {
        for known in contexts.iter().map(|it| it.address()) {
            let derived = other.address_of(known, id);
            let is_so = derived.is_none() || derived.as_ref() == Some(there.address());
            ensure!(is_so, "context {id} beside {known} is {}, not {derived:?}", there.address());
        }
    }
    let foreign = Address::new("no-such-scheme://x/0").map_err(|error| error.to_string())?;
    let derived = other.address_of(&foreign, 1);
    ensure!(derived.is_none(), "beside {foreign}, of another plugin: {derived:?}");
    Ok(())
}

pub(crate) fn a_context_that_does_not_listen_can_call_but_not_be_called(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let silent = world.add(suite.open(&suite.url, &OpenOptions::default())?, 0)?;
    let (to_b, back) = world.connect(silent, B)?;
    let (receive, _) = world.receive(silent, to_b, 1)?;
    world.answer(B, back, 1, b"over its own connection")?;
    world.received(silent, receive, b"over its own connection")?;
    let address = world.nodes[silent].address();
    let stranger = match world.nodes[A].context.lookup(&address) {
        Ok(peer) => peer,
        // It may have no address that anybody could look up.
        Err(Error::BadAddress { .. }) => return world.end(),
        Err(error) => fail!("looking {address} up failed: {error}"),
    };
    world.send(A, stranger, b"knock")?;
    world.gone(A, stranger)?;
    world.end()
}

pub(crate) fn contexts_of_one_domain_work_in_several_threads(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let domain = suite.open(&suite.url, &OpenOptions::listening())?;
    let count = usize::from(domain.caps().max_contexts.min(4));
    for number in 0..count {
        let id = u8::try_from(number).expect("below 4");
        world.add(std::sync::Arc::clone(&domain), id)?;
    }
    let address = world.nodes[A].address();
    let target: Vec<Node> = world.nodes.drain(..1).collect();
    let callers: Vec<Node> = world.nodes.drain(..).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for caller in callers {
            let address = &address;
            threads.push(scope.spawn(move || {
                let mut own = World { suite, nodes: vec![caller] };
                let peer = own.nodes[0].lookup(address)?;
                for round in 0..100 {
                    let (receive, _) = own.receive(0, peer, round)?;
                    own.send(0, peer, &round.to_le_bytes())?;
                    own.received(0, receive, &round.to_le_bytes())?;
                }
                own.end()
            }));
        }
        let mut own = World { suite, nodes: target };
        for _ in 0..100 * count {
            let (from, message) = own.arrival(0)?;
            let tag = message.as_slice().try_into().map_err(|_| "a request was cut short")?;
            own.answer(0, from, u64::from_le_bytes(tag), message.as_slice())?;
        }
        own.until("all answers were sent", |nodes| Ok(nodes[0].pending() == 0))?;
        // The callers take their answers and close; nothing is pushed by waiting for them here.
        let mut clock = suite.patience.start();
        while !threads.iter().all(|thread| thread.is_finished()) {
            let moved = own.round()?;
            ensure!(clock.patient(moved), "a caller never finished");
        }
        for thread in threads {
            thread.join().map_err(|_| "a caller panicked")??;
        }
        own.end()
    })
}
