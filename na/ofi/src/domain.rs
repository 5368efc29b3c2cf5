//! One opened URL.

use std::sync::{Arc, Mutex, PoisonError};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights};
use hg_na_frames::{Common, FramesWaiter, Listener, Place};

use crate::{
    address::{Asked, LOCAL, address_of, local, provider, target},
    choice,
    fabric::Endpoint,
    leftovers,
    settings::Settings,
    shared::{Home, Opened, Shared},
    transport::{Ofi, OfiContext},
};
use hg_na_parts::regions::{ServedRegion, random};

#[derive(Debug)]
pub(crate) struct OfiDomain(pub(crate) Arc<Shared>);

impl OfiDomain {
    /// The provider in libfabric's words, with its layers.
    pub(crate) fn provider(&self) -> &str {
        &self.0.offer.provider
    }

    /// Opens a URL.
    ///
    /// # Errors
    /// As [`hg_na::Plugin::open`].
    pub(crate) fn open(url: &Address, options: &OpenOptions) -> Result<Self, Error> {
        let provider = provider(url)?.to_owned();
        let settings = Settings::read(&options.settings)?;
        let bounds = settings.bounds.clone().with_key(options.key.as_ref())?;
        let asked = Asked::parse(url)?;
        let (offer, form) = choice::choose(&provider, &asked, &settings)?;
        let home = match asked {
            Asked::Local(Some(name)) => Home::Local(name.into()),
            Asked::Local(None) => Home::Local(made_up_name()?),
            Asked::Network(ip, port) => {
                Home::Network(choice::lifeline_ip(&offer, ip, &settings)?, port)
            }
        };
        let own = address_of(&provider, &home.place(0))?;
        let listener = Listener::bind(&home.place(0), options.listen, &own)?;
        let home = match (&home, &listener.place) {
            (Home::Network(ip, _), Place::Network(bound)) => Home::Network(*ip, bound.port()),
            _ => home,
        };
        if provider == LOCAL {
            leftovers::sweep(leftovers::FOLDER.as_ref());
        }
        let endpoint = Endpoint::open(&offer, form)?;
        let sleeps = endpoint.wait_fd().is_some();
        let mut common = Common::new(bounds, sleeps, options.listen)?;
        common.caps.device_memory = settings.device_memory;
        common.warn_of_strangers(&listener.place);
        Ok(Self(Arc::new(Shared {
            common: Arc::new(common),
            retry_bound: settings.retry_bound,
            provider,
            offer,
            form,
            home,
            first: Mutex::new(Some((endpoint, listener))),
            devices: Mutex::default(),
        })))
    }

    fn endpoint(&self, id: u8) -> Result<Opened, Error> {
        let shared = &self.0;
        let place = shared.home.place(id);
        let listener =
            Listener::bind(&place, shared.common.listen, &address_of(&shared.provider, &place)?)?;
        Ok((Endpoint::open(&shared.offer, shared.form)?, listener))
    }
}

pub(crate) fn context_of(
    shared: &Arc<Shared>,
    id: u8,
    (endpoint, listener): Opened,
) -> Result<OfiContext, Error> {
    let address = address_of(&shared.provider, &listener.place)?;
    let (wait_fd, common) = (endpoint.wait_fd(), Arc::clone(&shared.common));
    let fds: Vec<_> = wait_fd.into_iter().chain([endpoint.bell()]).collect();
    let waiter = FramesWaiter::new(Arc::clone(&common.guard), &fds, wait_fd.is_some())?;
    let transport = Ofi::new(Arc::clone(shared), endpoint);
    OfiContext::new(common, (id, address), (transport, Arc::new(waiter)), vec![listener])
}

/// 16 hexadecimal digits.
fn made_up_name() -> Result<String, Error> {
    let bytes = random()?;
    let number = u64::from_le_bytes(*bytes.first_chunk().expect("16 bytes hold 8"));
    Ok(format!("{number:016x}"))
}

impl Domain for OfiDomain {
    fn caps(&self) -> &Caps {
        &self.0.common.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.0.common.same_process()?;
        let common = &self.0.common;
        let region = match common.caps.device_memory {
            true => {
                self.0.knows_device_of(&memory)?;
                ServedRegion::register_anywhere(&common.regions, memory, rights)?
            }
            false => ServedRegion::register(&common.regions, memory, rights)?,
        };
        Ok(Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let shared = &self.0;
        shared.common.same_process()?;
        let mut ids = shared.common.ids();
        if ids.contains(&id) {
            let place = shared.home.place(id);
            return Err(Error::AddressInUse(address_of(&shared.provider, &place)?));
        }
        let kept = match id {
            0 => shared.first.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        let opened = kept.map_or_else(|| self.endpoint(id), Ok)?;
        let context = context_of(shared, id, opened)?;
        ids.insert(id);
        Ok(Box::new(context))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        match target(context, &self.0.provider).ok()? {
            Place::Local(place) => {
                let (name, _) = place.split_once('/')?;
                address_of(&self.0.provider, &local(name, id)).ok()
            }
            // Each context has a port of its own.
            Place::Network(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hg_na::{Completion, Message, Op};
    use watchdog::in_time;

    use super::*;
    use crate::fabric::lose_everything;

    #[test]
    fn a_call_whose_frame_is_lost_behind_its_injection_ends_with_its_peer() {
        let url = Address::new("ofi+tcp://127.0.0.1").unwrap();
        let open = || OfiDomain::open(&url, &OpenOptions::listening()).unwrap();
        let (own, other) = (open(), open());
        let mut there = other.context(0).unwrap();
        let opened = own.0.first.lock().unwrap().take().unwrap();
        let mut here = context_of(&own.0, 0, opened).unwrap();
        let to = here.lookup(there.address()).unwrap();
        let send = || Op::SendUnexpected { to, message: Message::copied(b"hello") };
        here.post(1, send()).unwrap();
        let (mut done, mut heard) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while !heard.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
            in_time!(start);
            here.progress(Instant::now(), &mut done).unwrap();
            there.progress(Instant::now(), &mut heard).unwrap();
        }
        lose_everything(here.transport.endpoint());
        here.post(2, Op::RecvExpected { from: to, tag: 5 }).unwrap();
        here.post(3, send()).unwrap();
        let ended = |it: &Completion| match it {
            Completion::Done(done) if done.token == 2 => Some(done.result.is_err()),
            _ => None,
        };
        let has_failed = loop {
            in_time!(start, "it waits for an answer that nobody can give");
            here.progress(Instant::now(), &mut done).unwrap();
            there.progress(Instant::now(), &mut heard).unwrap();
            if let Some(has_failed) = done.iter().find_map(ended) {
                break has_failed;
            }
        };
        assert!(has_failed, "{done:?}");
        // This process lives, and says so.
        let gone = |it: &Completion| match it {
            Completion::Gone { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        let reason = loop {
            in_time!(start, "the other end hears nothing of it");
            here.progress(Instant::now(), &mut done).unwrap();
            there.progress(Instant::now(), &mut heard).unwrap();
            if let Some(reason) = heard.iter().find_map(gone) {
                break reason;
            }
        };
        assert!(matches!(reason, hg_na::GoneReason::Refused(_)), "{reason}");
    }

    #[test]
    fn frames_without_a_connection_s_key_cost_their_receive_and_nothing_else() {
        let url = Address::new("ofi+tcp://127.0.0.1").unwrap();
        let open = || OfiDomain::open(&url, &OpenOptions::listening()).unwrap();
        let (own, other) = (open(), open());
        let mut friend = other.context(0).unwrap();
        let opened = own.0.first.lock().unwrap().take().unwrap();
        let mut here = context_of(&own.0, 0, opened).unwrap();
        let to = friend.lookup(&Context::address(&here).clone()).unwrap();
        let send = || Op::SendUnexpected { to, message: Message::copied(b"hello") };
        friend.post(1, send()).unwrap();
        let mut stranger = Endpoint::open(&own.0.offer, own.0.form).unwrap();
        let there = stranger.insert(here.transport.endpoint().name()).unwrap();
        let (mut heard, mut done, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        // As long as any, of places that there are and are not, and what is no frame at all.
        let (mut sent, mut rounds) = (0u32, 0);
        while sent < 2000 || rounds < 2000 {
            in_time!(start);
            let (len, place) = (8 + usize::try_from(sent % 200).unwrap(), sent % 3);
            let handed = stranger.send(there, (len, false), 0, |frame| {
                frame.fill(u8::try_from(sent / 256 % 256).unwrap());
                frame[..4].copy_from_slice(&[u8::try_from(sent % 13).unwrap(), 0, 0, 0]);
                frame[4..8].copy_from_slice(&place.to_le_bytes());
                true
            });
            (sent, rounds) = (sent + u32::from(handed.is_ok()), rounds + 1);
            let _ = stranger.poll(&mut events);
            here.progress(Instant::now(), &mut heard).unwrap();
            friend.progress(Instant::now(), &mut done).unwrap();
        }
        friend.post(2, send()).unwrap();
        let came = |it: &&Completion| matches!(it, Completion::Unexpected { message, .. } if message.as_slice() == b"hello");
        while heard.iter().filter(came).count() < 2 {
            in_time!(start);
            here.progress(Instant::now(), &mut heard).unwrap();
            friend.progress(Instant::now(), &mut done).unwrap();
        }
        assert_eq!(heard.len(), 2, "nothing of the stranger's: {heard:?}");
        assert_eq!(here.connected().len(), 1);
    }
}
