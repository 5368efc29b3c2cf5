//! This process as a member of one group: its machine, its objects, and who waits for what.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use hg::{Address, bulk::Frozen};
use rustc_hash::FxHashMap;

use crate::{
    completion::{Completer, Completion},
    disk::{Disk, Extent, Slot},
    error::Failure,
    id::GroupId,
    inbox::{AskIncoming, Closing, Inbox, Input, OnReformed, Opening, Resent, Sending},
    machine::{Carried, Config, Event, Header, Machine, Message},
    object::{Incoming, Received},
    options::Options,
    shared::{Shared, TraceEvent, What},
    store::Store,
    wire::Source,
};

/// An object that is here.
pub(super) struct Local {
    pub(super) store: Store,
    pub(super) header: Header,
    /// Of its blocks, as far as they are known; empty where there are none.
    pub(super) checksums: Vec<Option<u64>>,
    /// The number of its disk, where it has one.
    pub(super) disk: Option<u64>,
}

impl Local {
    pub(super) fn new(store: Store, header: Header, disk: Option<u64>) -> Self {
        Self { store, header, checksums: Vec::new(), disk }
    }

    /// Where its bytes are to be is known now: there, or in memory that they are copied to.
    pub(super) fn see(
        &mut self,
        engine: &hg::Engine,
        frozen: Option<Frozen>,
    ) -> Result<(), String> {
        let store = match frozen {
            Some(frozen) => Store::frozen(engine, frozen).map_err(|error| error.to_string()),
            None => Store::allocate(engine, self.header.size),
        };
        self.store = store?;
        Ok(())
    }

    pub(super) fn extent(&self, block: u64) -> Extent {
        let (offset, len) = self.header.range(block);
        Extent { block, offset, len }
    }

    pub(super) fn checksum(&self, block: u64) -> Option<u64> {
        self.checksums.get(usize::try_from(block).ok()?).copied().flatten()
    }

    /// Whether a block that is in memory sums up to this, where that is known.
    pub(super) fn is_right(&self, block: u64, checksum: Option<u64>) -> bool {
        let Extent { offset, len, .. } = self.extent(block);
        checksum.is_none_or(|it| self.store.checksum((offset, len)).is_ok_and(|sum| sum == it))
    }

    pub(super) fn set_checksum(&mut self, block: u64, checksum: u64) {
        let blocks = usize::try_from(self.header.blocks()).unwrap_or(0);
        self.checksums.resize(blocks, None);
        if let Some(place) = self.checksums.get_mut(usize::try_from(block).unwrap_or(usize::MAX)) {
            *place = Some(checksum);
        }
    }
}

/// A block that comes.
pub(super) struct Coming {
    pub(super) from: u32,
    pub(super) source: Source,
    /// Under way.
    pub(super) transfers: usize,
}

pub(super) struct Member {
    pub(super) own: u32,
    pub(super) addresses: Arc<[Address]>,
    pub(super) nodes: Vec<u32>,
    pub(super) options: Options,
    pub(super) machine: Machine<Source>,
    pub(super) locals: FxHashMap<u64, Local>,
    pub(super) coming: FxHashMap<(u64, u64), Coming>,
    pub(super) incoming: AskIncoming,
    pub(super) shared: Arc<Shared>,
    /// What introduces an object with an offer that is loaded first.
    introductions: FxHashMap<(u32, u64, u64), Header>,
    sendings: FxHashMap<u64, Completer<Result<(), Failure>>>,
    joining: Vec<Completer<Result<(), Failure>>>,
    pub(super) has_joined: bool,
    closing: Option<Closing>,
    pub(super) reforming: Option<OnReformed>,
    pub(super) reformed: Option<(GroupId, Vec<u32>)>,
}

impl Member {
    pub(super) fn new(opening: Opening) -> Self {
        Self::carrying(opening, Carried::default())
    }

    pub(super) fn carrying(opening: Opening, carried: Carried) -> Self {
        let Opening { own, members, nodes, options, incoming, shared, id: _ } = opening;
        let config = Config {
            own,
            digest: digest(&members, &nodes),
            nodes: nodes.clone(),
            in_flight: options.in_flight as usize,
            untaken_max: options.untaken_bytes_max,
        };
        Self {
            own,
            nodes,
            options,
            machine: Machine::new(config, carried),
            locals: FxHashMap::default(),
            coming: FxHashMap::default(),
            incoming,
            shared,
            addresses: members,
            introductions: FxHashMap::default(),
            sendings: FxHashMap::default(),
            joining: Vec::new(),
            has_joined: false,
            closing: None,
            reforming: None,
            reformed: None,
        }
    }

    /// The number of the member at this address.
    pub(super) fn place_of(&self, address: &Address) -> Option<u32> {
        let place = self.addresses.iter().position(|it| it == address)?;
        u32::try_from(place).ok()
    }

    /// Whether a member is on this node.
    pub(super) fn is_near(&self, member: u32) -> bool {
        self.nodes[member as usize] == self.nodes[self.own as usize]
    }

    /// Members on this node, this one among them.
    pub(super) fn near(&self) -> usize {
        (0..self.nodes.len()).filter(|it| self.nodes[*it] == self.nodes[self.own as usize]).count()
    }

    fn trace(&self, what: What, peer: u32, object: u64, block: u64) {
        if self.options.trace {
            let at = Instant::now();
            self.shared.lock().trace.push(TraceEvent { at, what, object, block, peer });
        }
    }

    /// Gives the object's number, unless the group is over.
    pub(super) fn send(&mut self, sending: Sending) -> Option<u64> {
        let Sending { store, disk, size, block_size, metadata, ended } = sending;
        if let Some(Err(failure)) = self.shared.lock().ended.clone() {
            ended.complete(Err(failure));
            return None;
        }
        let choice = self.options.schedule;
        let number = self.machine.send(choice, (size, block_size), disk.is_none(), metadata);
        let header = self.machine.header(number)?.clone();
        self.locals.insert(number, Local::new(store, header, disk));
        self.sendings.insert(number, ended);
        Some(number)
    }

    /// At the root: what the group before has left is sent again.
    pub(super) fn send_again(&mut self) -> Resent {
        let numbers = self.machine.unfinished();
        self.shared.lock().under_way = numbers.len();
        let again = numbers.into_iter().map(|number| {
            let (completion, ended) = Completion::new();
            self.sendings.insert(number, ended);
            (number, completion)
        });
        again.collect()
    }

    /// After a group that has failed, in the one that follows.
    pub(super) fn renew(&mut self, engine: &hg::Engine) {
        for local in self.locals.values_mut() {
            let renewed = local.store.disk().map_or(Ok(()), |disk| disk.renew(engine));
            if let Err(error) = renewed {
                let why = format!("there is no memory for blocks on their way: {error}");
                self.machine.handle(Event::Own { why });
            }
        }
    }

    /// The message that offers a block; `None`: it is being loaded.
    pub(super) fn offer(
        &mut self,
        to: u32,
        object: u64,
        block: u64,
        header: Option<Header>,
    ) -> Result<Option<Message<Source>>, String> {
        self.trace(What::Offered, to, object, block);
        let Some(local) = self.locals.get_mut(&object) else { return Ok(None) };
        let (extent, has_checksum) = (local.extent(block), self.options.checksum);
        let is_summed = local.checksum(block).is_some();
        if let Store::Disk(disk) = &mut local.store {
            if let Some(header) = header {
                self.introductions.insert((to, object, block), header);
            }
            // What the root has summed up counts, whatever is read from a disk now.
            disk.load(to, extent, has_checksum && !is_summed);
            return Ok(None);
        }
        let range = (extent.offset, extent.len);
        let text = |error: hg::Error| format!("its memory cannot be read: {error}");
        if self.own == 0 && has_checksum && local.checksum(block).is_none() {
            let checksum = local.store.checksum(range).map_err(text)?;
            local.set_checksum(block, checksum);
        }
        let place = local.store.place(range).map_err(text)?;
        let source = Source { place, checksum: local.checksum(block) };
        Ok(Some(Message::Offer { object, block, header, source }))
    }

    /// The same once it is loaded.
    pub(super) fn loaded(
        &mut self,
        (to, object, block): (u32, u64, u64),
        at: Slot,
        checksum: Option<u64>,
    ) -> Option<Message<Source>> {
        let header = self.introductions.remove(&(to, object, block));
        let local = self.locals.get_mut(&object)?;
        if let Some(checksum) = checksum.filter(|_| local.checksum(block).is_none()) {
            local.set_checksum(block, checksum);
        }
        let checksum = local.checksum(block);
        let source = local.store.disk()?.loaded(to, block, at, checksum)?;
        Some(Message::Offer { object, block, header, source })
    }

    pub(super) fn passed_on(&mut self, to: u32, object: u64, block: u64) {
        self.trace(What::Taken, to, object, block);
        let local = self.locals.get_mut(&object).filter(|it| block < it.header.blocks());
        let bytes = local.as_ref().map_or(0, |it| it.extent(block).len);
        if let Some(disk) = local.and_then(|it| it.store.disk()) {
            disk.taken(to, block);
        }
        let progress = &mut self.shared.lock().progress;
        progress.passed_on += 1;
        if self.own == 0 {
            progress.blocks += 1;
            progress.bytes += bytes;
        }
    }

    /// Asks where an object goes.
    pub(super) fn prepare(
        &mut self,
        object: u64,
        engine: &hg::Engine,
        disk: u64,
        inbox: &Arc<Inbox>,
    ) -> Event<Source> {
        let Some(header) = self.machine.header(object).cloned() else {
            return Event::Refused { object, why: "nobody has introduced it".to_owned() };
        };
        let Header { size, block_size, metadata, .. } = &header;
        let incoming = Incoming { number: object, size: *size, block_size: *block_size, metadata };
        let asked = catch_unwind(AssertUnwindSafe(|| (self.incoming)(incoming)));
        let destination =
            asked.unwrap_or_else(|_| Err("whoever was asked has panicked".to_owned()));
        let inbox = Arc::clone(inbox);
        let block_size = header.block_size.min(header.size.max(1));
        let store = destination.and_then(|destination| {
            Store::of_destination(engine, destination, header.size, |blocks| {
                let tell = move |group, done| inbox.tell(Input::Disk(disk, group, done));
                Disk::start(engine, blocks, block_size, tell)
            })
        });
        match store {
            Ok(store) => {
                let bytes = store.allocated() + header.kept();
                let disk = matches!(store, Store::Disk(_)).then_some(disk);
                self.locals.insert(object, Local::new(store, header, disk));
                Event::Ready { object, bytes }
            }
            Err(why) => Event::Refused { object, why },
        }
    }

    /// The number of an object's disk, where it has one.
    pub(super) fn disk_of(&self, object: u64) -> Option<u64> {
        self.locals.get(&object)?.disk
    }

    pub(super) fn begun(&self, from: u32, object: u64, block: u64) {
        self.trace(What::Begun, from, object, block);
    }

    /// A block is here.
    pub(super) fn arrived(&mut self, object: u64, block: u64, was_here: bool) {
        let Some(Coming { from, source, .. }) = self.coming.remove(&(object, block)) else {
            return;
        };
        let Some(local) = self.locals.get_mut(&object) else { return };
        if let Some(checksum) = source.checksum {
            local.set_checksum(block, checksum);
        }
        let bytes = local.extent(block).len;
        self.trace(What::Arrived, from, object, block);
        let progress = &mut self.shared.lock().progress;
        progress.blocks += 1;
        progress.bytes += bytes;
        progress.resumed_blocks += u64::from(was_here);
    }

    pub(super) fn finish(&mut self, object: u64) {
        let Some(local) = self.locals.get_mut(&object) else { return };
        match local.store.disk() {
            Some(disk) if !disk.is_finished => disk.finish(),
            _ => self.machine.handle(Event::Finished { object }),
        }
    }

    pub(super) fn deliver(&mut self, object: u64) {
        let Some(local) = self.locals.remove(&object) else { return };
        let bytes = local.store.allocated() + local.header.kept();
        let Some(data) = local.store.into_data() else {
            tracing::error!(object, "the memory of an object is used by somebody else");
            return;
        };
        let Header { size, metadata, .. } = local.header;
        let received = Received { number: object, size, metadata, data };
        // Who closes receives nothing more.
        let received = self.closing.is_none().then_some((received, bytes));
        self.shared.change(|state| {
            state.progress.objects += 1;
            state.ready.extend(received);
        });
    }

    pub(super) fn everywhere(&mut self, object: u64) {
        let local = self.locals.remove(&object);
        let mut state = self.shared.lock();
        state.progress.objects += 1;
        if let Some(header) = local.map(|it| it.header).filter(Header::is_taken_whole) {
            let others = self.addresses.len() as u64 - 1;
            state.progress.blocks += others * header.blocks();
            state.progress.passed_on += others * header.blocks();
            state.progress.bytes += others * header.size;
        }
        state.under_way = state.under_way.saturating_sub(1);
        drop(state);
        if let Some(ended) = self.sendings.remove(&object) {
            ended.complete(Ok(()));
        }
    }

    pub(super) fn lose(&mut self, object: u64) {
        self.locals.remove(&object);
    }

    pub(super) fn when_joined(&mut self, completer: Completer<Result<(), Failure>>) {
        let ended = self.shared.lock().ended.clone();
        match ended {
            Some(Err(failure)) => completer.complete(Err(failure)),
            _ if self.has_joined => completer.complete(Ok(())),
            _ => self.joining.push(completer),
        }
    }

    pub(super) fn joined(&mut self) {
        self.has_joined = true;
        self.joining.drain(..).for_each(|it| it.complete(Ok(())));
    }

    /// Says whether it is over already.
    pub(super) fn when_closed(&mut self, closing: Closing) -> bool {
        let ended = self.shared.lock().ended.clone();
        match ended {
            Some(ended) => {
                closing.ended.complete(ended);
                true
            }
            None => {
                self.closing = Some(closing);
                let unreceived = std::mem::take(&mut self.shared.lock().ready);
                drop(unreceived);
                false
            }
        }
    }

    /// Says whether nobody has a handle of it any more.
    pub(super) fn closed(&mut self) -> bool {
        self.shared.change(|state| state.ended = Some(Ok(())));
        self.end_closing(Ok(()))
    }

    /// The same where it has failed.
    pub(super) fn failed(&mut self, member: u32, why: String) -> bool {
        let address = self.addresses[member as usize].clone();
        let failure = Failure { member, address, why };
        self.shared.change(|state| state.ended = Some(Err(failure.clone())));
        let sendings = std::mem::take(&mut self.sendings);
        let waiting = sendings.into_values().chain(self.joining.drain(..));
        waiting.for_each(|it| it.complete(Err(failure.clone())));
        self.coming.clear();
        self.introductions.clear();
        for local in self.locals.values_mut() {
            if let Some(disk) = local.store.disk() {
                disk.withdraw();
            }
        }
        self.end_closing(Err(failure))
    }

    fn end_closing(&mut self, how: Result<(), Failure>) -> bool {
        let Some(Closing { ended, keeps }) = self.closing.take() else { return false };
        ended.complete(how);
        drop(keeps); // Which may end this process's multicast.
        true
    }
}

/// Of all that members have to agree on.
pub(super) fn digest(members: &[Address], nodes: &[u32]) -> u64 {
    let names = members.iter().flat_map(|it| it.as_str().bytes().chain([0]));
    let nodes = nodes.iter().flat_map(|it| it.to_le_bytes());
    names.chain(nodes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
