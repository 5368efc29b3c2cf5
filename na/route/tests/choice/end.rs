//! A domain of routing, one context of it, and what it has reported.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Descriptor, Domain, Done, GoneReason, Memory, Message, Op,
    OpenOptions, Peer, Plugin, Returned, Rights, Token,
};
use watchdog::in_time;

pub(crate) fn address(text: &str) -> Address {
    Address::new(text).unwrap()
}

/// A domain, one context of it, and what it has reported.
pub(crate) struct End {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) context: Box<dyn Context>,
    pub(crate) seen: VecDeque<Completion>,
}

impl End {
    pub(crate) fn open(plugin: &dyn Plugin, url: &str, settings: &[(&str, &str)]) -> Self {
        let mut options = OpenOptions::listening();
        for (name, value) in settings {
            options = options.with(name, value);
        }
        let domain = plugin.open(&address(url), &options).unwrap();
        let context = domain.context(0).unwrap();
        Self { domain, context, seen: VecDeque::new() }
    }

    pub(crate) fn lookup(&mut self, other: &Self) -> Peer {
        self.context.lookup(other.context.address()).unwrap()
    }

    pub(crate) fn post(&mut self, token: Token, op: Op) -> hg_na::OpId {
        self.context.post(token, op).map_err(|rejected| rejected.error).unwrap()
    }

    pub(crate) fn send(&mut self, token: Token, to: Peer, bytes: &[u8]) {
        self.post(token, Op::SendUnexpected { to, message: Message::copied(bytes) });
    }

    pub(crate) fn round(&mut self) {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).unwrap();
        self.seen.extend(done);
    }

    pub(crate) fn take<T>(&mut self, mut pick: impl FnMut(&Completion) -> Option<T>) -> Option<T> {
        let at = self.seen.iter().position(|completion| pick(completion).is_some())?;
        pick(&self.seen.remove(at)?)
    }
}

/// Steps both until the first has reported something.
pub(crate) fn until<T>(
    one: &mut End,
    other: &mut End,
    mut pick: impl FnMut(&Completion) -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = one.take(&mut pick) {
            return found;
        }
        in_time!(start, "it never came; instead: {:?}", one.seen);
        one.round();
        other.round();
    }
}

pub(crate) fn arrived(completion: &Completion) -> Option<(Peer, Vec<u8>)> {
    match completion {
        Completion::Unexpected { from, message } => Some((*from, message.as_slice().to_vec())),
        _ => None,
    }
}

pub(crate) fn ended(token: Token) -> impl FnMut(&Completion) -> Option<(bool, Option<Vec<u8>>)> {
    move |completion| match completion {
        Completion::Done(Done { token: of, result, returned, .. }) if *of == token => {
            let bytes = match returned {
                Returned::Message(message) => Some(message.as_slice().to_vec()),
                _ => None,
            };
            Some((result.is_ok(), bytes))
        }
        _ => None,
    }
}

pub(crate) fn gone(completion: &Completion) -> Option<(Peer, GoneReason)> {
    match completion {
        Completion::Gone { peer, reason } => Some((*peer, reason.clone())),
        _ => None,
    }
}

/// `from` greets `to`; answers with both handles.
pub(crate) fn greet(from: &mut End, to: &mut End, peer: Peer) -> Peer {
    from.send(1, peer, b"greeting");
    let (back, bytes) = until(to, from, arrived);
    assert_eq!(bytes, b"greeting");
    assert!(until(from, to, ended(1)).0);
    back
}

/// Gets a region of 10 bytes.
pub(crate) fn get(from: &mut End, owner: &mut End, peer: Peer, descriptor: &Descriptor) -> Vec<u8> {
    let into = from.domain.register(Memory::from(vec![0; 10]), Rights::READ).unwrap();
    let local = into.slice(0, 10).unwrap();
    from.post(77, Op::Get { from: peer, local, remote: descriptor.slice(0, 10).unwrap() });
    assert!(until(from, owner, ended(77)).0);
    into.unregister().unwrap().into_vec().unwrap()
}
