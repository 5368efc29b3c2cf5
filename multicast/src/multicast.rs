//! What a process has for all its groups: an engine, and the thread that drives them.

use std::{fmt, sync::Arc, thread};

use hg::Address;

use crate::{
    driver::Driver,
    error::Error,
    group::Group,
    id::GroupId,
    inbox::{Inbox, Input, Opening},
    object::{Destination, Incoming},
    options::Options,
    process::Process,
    schedule,
    shared::Shared,
    wire::{Unknown, meet, tell, watch},
};

/// An engine, and the thread that drives all groups of this process over it. Clones are the same one.
#[derive(Clone)]
pub struct Multicast {
    process: Arc<Process>,
}

impl Multicast {
    /// Opens an engine that listens. Settings, keys and handlers of one's own are the builder's; who makes its progress is decided here
    /// ([`hg::Progress::Own`], by a thread of its own), and that this thread sleeps at once where a group has more members on this host than cores
    /// are there, whatever [`hg::Builder::wait`] says: others want the core that it would poll on.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Thread`].
    pub fn open(builder: hg::Builder, url: &str) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::new());
        let registered =
            serve(builder, &inbox).map_err(|error| Error::Members(error.to_string()))?;
        let engine = registered.listen(true).progress(hg::Progress::Own).open(url)?;
        inbox.set_engine(&engine);
        let (driven, told) = (engine.clone(), Arc::clone(&inbox));
        let thread = thread::Builder::new().name("multicast".to_owned());
        let thread = thread.spawn(move || Driver::run(&driven, &told)).map_err(Error::Thread)?;
        Ok(Self { process: Arc::new(Process::new(inbox, engine, thread)) })
    }

    /// Where others reach this process.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.process.engine.address()
    }

    /// The engine, to register memory and to call other things with.
    #[must_use]
    pub fn engine(&self) -> &hg::Engine {
        &self.process.engine
    }

    /// Joins a group. Each member calls this with the same id and the same addresses, of which the first is the root's; `own` is this
    /// process's place among them. Comes back at once: objects may be sent, and go when all have joined.
    ///
    /// `incoming` is asked where each object goes; words instead refuse it, which ends the group and is told to all. The root's is never
    /// asked.
    ///
    /// # Errors
    /// [`Error::Members`], [`Error::SameId`], [`Error::Engine`] for an address that cannot be looked up, [`Error::Closed`] or
    /// [`Error::Engine`] after the end of this process's multicast.
    pub fn group(
        &self,
        id: GroupId,
        members: &[Address],
        own: u32,
        options: Options,
        incoming: impl FnMut(Incoming<'_>) -> Result<Destination, String> + Send + 'static,
    ) -> Result<Group, Error> {
        let nodes = options.check(members, own)?;
        let hosts = schedule::hosts(&nodes);
        let place = members.iter().position(|member| member == self.address());
        if let Some(place) = place.filter(|place| *place as u64 != u64::from(own)) {
            let why = format!("this process is member {place} by its address, and not {own}");
            return Err(Error::Members(why));
        }
        for member in members {
            self.process.engine.lookup(member)?;
        }
        if !self.process.inbox.add(id) {
            return Err(Error::SameId);
        }
        let shared = Arc::new(Shared::default());
        let members: Arc<[Address]> = members.into();
        let opening = Opening {
            id,
            own,
            members: Arc::clone(&members),
            nodes,
            options: options.clone(),
            incoming: Box::new(incoming),
            shared: Arc::clone(&shared),
        };
        self.process.inbox.push(Input::Open(Box::new(opening))).map_err(|_over| Error::Closed)?;
        let process = Arc::clone(&self.process);
        Ok(Group {
            process,
            id,
            own,
            members,
            hosts,
            options,
            shared,
            resent: Vec::new(),
            leaves: true,
        })
    }

    /// Ends the engine and all groups, whoever else has a clone: to the others this process has died, unless its groups were closed. Not to be
    /// called by what `incoming` is.
    pub fn close(&self) {
        self.process.close();
    }
}

impl fmt::Debug for Multicast {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Multicast({})", self.address())
    }
}

pub(crate) fn serve(
    builder: hg::Builder,
    inbox: &Arc<Inbox>,
) -> Result<hg::Builder, hg::RegisterError> {
    let (told, met, watched) = (Arc::clone(inbox), Arc::clone(inbox), Arc::clone(inbox));
    builder
        .serve(tell, move |request, (group, from, message)| {
            if told.knows(group) {
                let origin = request.origin();
                told.tell(Input::Told { group, from, origin, message });
            }
            Ok(())
        })?
        .serve(meet, move |request, (group, meeting)| {
            if met.is_wanted(group, &meeting) {
                met.tell(Input::Met { group, origin: request.origin(), meeting });
            }
            Ok(())
        })?
        .serve_later(watch, move |_, (group, _), answer| {
            if watched.lives_in(group) {
                watched.tell(Input::Watched(answer));
            } else {
                answer.send(Err(Unknown));
            }
        })
}
