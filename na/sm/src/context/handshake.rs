//! From the first post, or an accept, to an open connection.
//!
//! ```text
//! origin                                   target
//! first post: segments, Hello  ---------->  accepted: same user? Hello: segments checked and mapped
//! segments checked, mapped     <----------  Welcome (or Refuse with a sentence)
//! Open: what was queued goes                Open
//! ```
//! Each side watches the socket from then on (hang-up, goodbye), and a pidfd of the other process.
//! A listener that is stopped: connects wait in its backlog, then for a place there, until the deadline.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Peer};

use super::{
    SmContext,
    chores::{EDGE_IN, LEVEL_IN, LISTENER, Source, token},
    draining::for_the_other_side,
    watch_fd,
};
use crate::{
    arena::{LANE_BYTES, Lane},
    body::OwnArena,
    connection::Phase,
    fail,
    link::{Link, MakePages, OwnSide, TheirSide},
    os::{
        closing::{close_elsewhere, room as room_to_close},
        event::{Doorbell, PeerBell},
        mapping::seals_of,
        misbehaved, room,
    },
    region::table,
    rendezvous::{
        packet::{GOODBYE, GREETING_FDS, PACKET_MAX, Packet},
        process::ProcessWatch,
        socket::{Credentials, Received, Sent, Socket},
    },
    segment::Rings,
    settings::BACKLOG_RETRY,
};

/// Connections accepted in one round.
const ACCEPT_BURST: u32 = 16;
/// How long a listener rests that could not accept: what it lacks, descriptors above all, is not there at once.
const LISTENER_REST: Duration = Duration::from_millis(100);

impl SmContext {
    /// The next round connects, if nobody has asked for it yet.
    pub(crate) fn start(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        if connection.phase == Phase::Idle {
            connection.phase = Phase::Starting;
            self.called.push_back(peer);
            self.chore();
        }
    }

    /// Connects, or waits for a place in the listener's backlog.
    pub(crate) fn try_connect(&mut self, peer: Peer, now: Instant, deadline: Instant) {
        let Some(target) = self.peers.find(peer).and_then(|it| it.target.clone()) else { return };
        let room = room_to_close(now).map_err(|_| Error::Again);
        let socket = room.and_then(|()| Socket::connect(&target.name, target.context));
        match socket.and_then(|socket| self.say_hello(peer, socket)) {
            Ok(()) => self.at(deadline, peer),
            Err(Error::Again) => {
                if let Some(connection) = self.peers.find(peer) {
                    connection.phase = Phase::Waiting(deadline);
                }
                self.at(deadline.min(now + BACKLOG_RETRY), peer);
            }
            Err(error) => self.end(peer, reason_of(error)),
        }
    }

    fn say_hello(&mut self, peer: Peer, socket: Socket) -> Result<(), Error> {
        let socket = Arc::new(socket);
        let met = meet(&socket, |other| self.shared.settings.policy.check_target(other))?;
        let (own, segment) = self.own_side()?;
        fail::point("hello");
        self.greet(&socket, (&own, &segment), Packet::Hello)?;
        self.keep(peer, socket, met)?;
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        connection.own = Some(own);
        connection.phase = Phase::Connecting;
        Ok(())
    }

    /// Watches who was met: without a number its socket tells of its end.
    fn keep(&mut self, peer: Peer, socket: Arc<Socket>, met: Met) -> Result<(), Error> {
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        let (credentials, watch) = met;
        if !self.shared.settings.cma {
            watch.deny();
        }
        connection.credentials = Some(credentials);
        let socket = connection.socket.insert(socket).fd();
        let pidfd = connection.watch.insert(Arc::new(watch)).fd();
        watch_fd(&self.waiter, socket, token(peer, Source::Socket), LEVEL_IN)?;
        pidfd
            .map_or(Ok(()), |it| watch_fd(&self.waiter, it, token(peer, Source::Process), LEVEL_IN))
    }

    /// This side's part of a link, and its segment for a greeting, to be closed once sent.
    fn own_side(&self) -> Result<(OwnSide, OwnedFd), Error> {
        let (rings, segment) = Rings::create()?;
        let lanes = [Lane::new(0), Lane::new(LANE_BYTES)];
        let states = lanes.each_ref().map(|lane| Arc::clone(lane.states()));
        let arena = Arc::new(OwnArena { bytes: rings.share(), states });
        let make_pages = room::is_strict().then_some(Rings::make_pages as MakePages);
        let (bell, unrung) = (Doorbell::new()?, Arc::clone(&self.unrung));
        Ok((OwnSide { rings, arena, lanes, make_pages, bell, unrung }, segment))
    }

    fn greet(
        &self,
        socket: &Socket,
        (own, segment): (&OwnSide, &OwnedFd),
        kind: fn([u8; 16]) -> Packet,
    ) -> Result<(), Error> {
        let hello = kind(self.shared.incarnation).encode();
        let empty;
        let table = match self.shared.regions.table.fd() {
            Some(own) => own,
            None => {
                empty = table::empty()?;
                empty.as_fd()
            }
        };
        let fds = [segment.as_fd(), table, own.bell.fd()];
        match socket.send(&hello, &fds)? {
            // From one that is closed a last word may wait to be received; the hang-up is told by the event that follows.
            Sent::Done | Sent::Closed => Ok(()),
            Sent::Full => Err(misbehaved("it does not read its socket")),
        }
    }

    pub(crate) fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_BURST {
            let Some(listener) = self.listener.as_mut() else { return };
            match room_to_close(now).map_err(|_| Error::Again).and_then(|()| listener.accept()) {
                Ok(Some(socket)) => self.accepted(socket, now),
                Ok(None) => return,
                Err(Error::Again) => return self.rest_listener(now),
                Err(error) => {
                    tracing::warn!(%error, "accepting a peer failed");
                    return self.rest_listener(now);
                }
            }
        }
    }

    /// Whoever waits to be accepted would be told of in each round.
    fn rest_listener(&mut self, now: Instant) {
        let Some(listener) = &self.listener else { return };
        self.waiter.remove(listener.fd());
        self.listen_at = Some(now + LISTENER_REST);
        self.schedule();
    }

    /// Tries again to accept who waits.
    pub(crate) fn listen_again(&mut self, now: Instant) {
        self.listen_at = None;
        let Some(listener) = &self.listener else { return };
        match watch_fd(&self.waiter, listener.fd(), LISTENER, LEVEL_IN) {
            Ok(()) => self.accept(now),
            Err(error) => {
                tracing::warn!(%error, "the listener cannot be watched");
                self.rest_listener(now);
            }
        }
    }

    fn accepted(&mut self, socket: Socket, now: Instant) {
        let (max, socket) = (self.shared.settings.max_peers, Arc::new(socket));
        let met = if self.peers.len() < max {
            meet(&socket, |other| self.shared.settings.policy.check_origin(other))
        } else {
            Err(refused(format!("it has {max} peers, its `max-peers`")))
        };
        let met = match met {
            Ok(met) => met,
            Err(error) => {
                let sentence = for_the_other_side(&reason_of(error));
                tracing::debug!(sentence, "a peer was refused");
                return socket.refuse(sentence);
            }
        };
        let peer = self.peers.add(Phase::Greeting).peer;
        let kept = self.keep(peer, socket, met);
        self.at(now + self.shared.settings.connect_timeout, peer);
        if let Err(error) = kept {
            self.end(peer, reason_of(error));
        }
    }

    /// Something came over a socket, or it hung up; whether a packet was heard, which others may follow.
    pub(crate) fn socket_event(&mut self, peer: Peer) -> bool {
        let Some(connection) = self.peers.find(peer) else { return false };
        let Some(socket) = &connection.socket else { return false };
        let mut buffer = [0; PACKET_MAX];
        let heard = match socket.recv(&mut buffer) {
            Ok(Received::Message { len, mut fds }) => {
                let heard = self.heard(peer, &buffer[..len], &mut fds);
                // The last close of memory waits for nobody, that of an eventfd may.
                let unused =
                    fds.unwrap_or_default().into_iter().filter(|it| seals_of(it).is_none());
                close_elsewhere(unused.collect());
                heard
            }
            Ok(Received::Nothing) => return false,
            // No goodbye was said, as to one that was not accepted, too ([`Listener::close`]).
            Ok(Received::Closed) => {
                if connection.is_open()
                    && let Some(watch) = &connection.watch
                {
                    watch.hung_up();
                }
                // Its process may be seen for a while still: the kernel closes what it had open first.
                Err(Error::PeerGone(GoneReason::Exited))
            }
            Err(error) => Err(error),
        };
        heard.map_err(|error| self.end(peer, reason_of(error))).is_ok()
    }

    fn heard(&mut self, peer: Peer, bytes: &[u8], fds: &mut Fds) -> Result<(), Error> {
        let packet = Packet::decode(bytes).map_err(Error::PeerGone)?;
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        match (packet, &connection.phase) {
            (_, phase) if phase.over().is_some() => Ok(()),
            (Packet::Refuse(it), _) if it == GOODBYE => Err(Error::PeerGone(GoneReason::Closed)),
            (Packet::Refuse(words), _) => Err(refused(words)),
            (Packet::Welcome(domain), Phase::Connecting) => self.welcomed(peer, domain, fds),
            (Packet::Hello(domain), Phase::Greeting) => self.greeted(peer, domain, fds),
            (Packet::Map(name, proof), Phase::Open) => self.serve_map(peer, name, proof),
            (Packet::Mapped(name, status), Phase::Open) => self.mapped(peer, name, status, fds),
            (Packet::Unmap(name), Phase::Open) => {
                connection.maps.unmap(name);
                Ok(())
            }
            (Packet::Ring, Phase::Open) => Ok(()),
            (_, _) => Err(misbehaved("it speaks out of turn")),
        }
    }

    fn greeted(&mut self, peer: Peer, domain: [u8; 16], fds: &mut Fds) -> Result<(), Error> {
        let theirs = self.map(peer, domain, fds)?;
        let (own, segment) = self.own_side()?;
        self.heed(peer, &own, &theirs)?;
        // The peer may use the rings, and reach the regions, as soon as it has read Welcome.
        fail::point("welcome");
        let Some(socket) = theirs.socket.upgrade() else { return Ok(()) };
        self.greet(&socket, (&own, &segment), Packet::Welcome)?;
        self.opened(peer, own, theirs)
    }

    fn welcomed(&mut self, peer: Peer, domain: [u8; 16], fds: &mut Fds) -> Result<(), Error> {
        let theirs = self.map(peer, domain, fds)?;
        let own = self.peers.find(peer).and_then(|it| it.own.take());
        let Some(own) = own else { return Ok(()) };
        self.heed(peer, &own, &theirs)?;
        self.opened(peer, own, theirs)
    }

    /// Checks and maps what a greeting carried.
    fn map(&mut self, peer: Peer, domain: [u8; 16], fds: &mut Fds) -> Result<TheirSide, Error> {
        let fds = fds.as_mut().map_err(|error| error.clone())?;
        let few = || misbehaved("its greeting carries too few descriptors");
        let [segment, table, _]: &[_; GREETING_FDS] = fds[..].try_into().map_err(|_| few())?;
        let socket = self.peers.find(peer).and_then(|it| it.socket.as_ref());
        Ok(TheirSide {
            socket: Arc::downgrade(socket.ok_or(Error::UnknownPeer)?),
            rings: Arc::new(Rings::open(segment)?),
            table: self.shared.tables.open(domain, table)?,
            // What is mapped is closed.
            bell: PeerBell::from_fd(fds.drain(..).next_back().ok_or_else(few)?)?,
        })
    }

    /// Looks at a peer's pins from now on, until all is given back.
    fn heed(&mut self, peer: Peer, own: &OwnSide, theirs: &TheirSide) -> Result<(), Error> {
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        let Some(watch) = connection.watch.clone() else { return Ok(()) };
        let (own, rings) = (own.rings.share(), Arc::clone(&theirs.rings));
        connection.board = Some(self.shared.regions.boards.add(own, rings, watch)?);
        Ok(())
    }

    fn opened(&mut self, peer: Peer, own: OwnSide, theirs: TheirSide) -> Result<(), Error> {
        watch_fd(&self.waiter, own.bell.fd(), token(peer, Source::Doorbell), EDGE_IN)?;
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        connection.link = Some(Link::new(own, theirs));
        connection.phase = Phase::Open;
        self.untime(peer);
        fail::point("open");
        self.activate(peer);
        self.has_leftovers = true;
        if self.peers.find(peer).is_some_and(|it| it.ferry.len() > 0) {
            self.attend_ferry(peer);
        }
        self.later.insert(peer);
        self.try_views(peer);
        self.flush(peer);
        self.chore();
        Ok(())
    }
}

/// The descriptors of a packet; what nobody takes is closed later.
type Fds = Result<Vec<OwnedFd>, Error>;

/// Who is at the other end of a socket.
type Met = (Credentials, ProcessWatch);

/// Lets in whom a policy lets in, while there is room for one more.
fn meet(
    socket: &Arc<Socket>,
    policy: impl FnOnce(&Credentials) -> Result<(), String>,
) -> Result<Met, Error> {
    let other = socket.peer_credentials()?;
    policy(&other).map_err(refused)?;
    room::for_a_peer()?;
    Ok((other, ProcessWatch::of(socket)?))
}

fn refused(words: String) -> Error {
    Error::PeerGone(GoneReason::Refused(words.into()))
}

/// Why a peer is gone, from what went wrong while connecting.
pub(super) fn reason_of(error: Error) -> GoneReason {
    match error {
        Error::PeerGone(reason) => reason,
        limit @ (Error::Limit { .. } | Error::NoMemory { .. }) => {
            GoneReason::Exhausted(limit.to_string().into())
        }
        other => GoneReason::Unreachable(other.to_string().into()),
    }
}
