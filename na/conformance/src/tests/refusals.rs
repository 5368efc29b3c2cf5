//! What a plugin must refuse, in so many words: sizes, handles, addresses.

use hg_na::{Address, Error, Message, Op, Peer};

use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, World, pattern},
};

pub(crate) fn messages_one_byte_too_long_are_refused(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to, _) = world.connect(A, B)?;
    let caps = world.nodes[A].caps().clone();
    let bytes = |len| Message::from(pattern(len, 1));
    let too_long = [
        Op::SendUnexpected { to, message: bytes(caps.max_unexpected + 1) },
        Op::SendControl { to, message: bytes(caps.max_control + 1) },
        Op::SendExpected { to, tag: 1, message: bytes(caps.max_expected + 1) },
    ];
    for op in too_long {
        let error = world.refused(A, op, "a message that is too long")?;
        ensure!(matches!(error, Error::TooLong { .. }), "a long message is refused with {error:?}");
    }
    let longest = caps.max_unexpected.max(caps.max_expected).max(caps.max_control);
    match world.nodes[A].context.message(to, longest + 1) {
        Err(Error::TooLong { .. }) => {}
        other => return Err(format!("memory for a message that is too long: {other:?}")),
    }
    world.end()
}

pub(crate) fn the_limits_are_those_of_the_contract(suite: &Suite) -> Outcome {
    let world = World::new(suite, 1)?;
    let caps = world.nodes[A].caps();
    let least = hg_na::Caps::minimal();
    ensure!(
        caps.max_control >= least.max_control,
        "control messages of {} bytes",
        caps.max_control
    );
    ensure!(caps.queue_depth > 0, "no queues: {caps:?}");
    ensure!(caps.max_contexts > 0 && caps.max_segments > 0, "nothing can be opened: {caps:?}");
    ensure!(caps.short_unexpected <= caps.max_unexpected, "short over long: {caps:?}");
    ensure!(caps.short_expected <= caps.max_expected, "short over long: {caps:?}");
    let address = world.nodes[A].address();
    let schemes = suite.plugin.schemes();
    ensure!(schemes.contains(&address.scheme()), "{address} has none of the schemes {schemes:?}");
    world.end()
}

pub(crate) fn handles_that_were_never_given_out_are_refused(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    for peer in [Peer::new(0, 0), Peer::new(u32::MAX, 0), Peer::new(5, u32::MAX)] {
        let ops = [
            Op::SendUnexpected { to: peer, message: Message::copied(b"x") },
            Op::SendControl { to: peer, message: Message::copied(b"x") },
            Op::SendExpected { to: peer, tag: 1, message: Message::copied(b"x") },
            Op::RecvExpected { from: peer, tag: 1 },
        ];
        for op in ops {
            let error = world.refused(A, op, "an operation to nobody")?;
            ensure!(matches!(error, Error::UnknownPeer), "an unknown peer is refused as {error:?}");
        }
        world.nodes[A].context.forget(peer);
    }
    world.end()
}

pub(crate) fn addresses_of_other_plugins_are_refused(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let address = Address::new("no-such-scheme://x/0").map_err(|error| error.to_string())?;
    match world.nodes[A].context.lookup(&address) {
        Err(Error::BadAddress { .. }) => {}
        other => return Err(format!("an address of another plugin: {other:?}")),
    }
    world.end()
}
