//! `block_stream`: blocks of 4 KiB, one way, on a bare context of the transport: no calls, no channel.
//!
//! The sender fills each message as a channel does, from a block that lies elsewhere. The receiver takes each and lets go of it; that the last one has come
//! it says by a control message, which ends the repetition.

use std::time::Instant;

use hg::na::{self, Completion, Message, Op, OpenOptions, Peer, Plugin, QUIET};

use crate::error::Error;
use crate::measure::{Measure, Subject, Unit};
use crate::pair::{self, Control, Cores};

/// The context that sends, and the process that receives.
pub(super) struct Stream {
    peer: pair::Peer,
    end: End,
    to: Peer,
    block: Vec<u8>,
}

impl Stream {
    /// Starts the second process.
    pub(super) fn start(cores: Cores) -> Result<Self, Error> {
        let mut peer = pair::Peer::start("blocks", cores)?;
        let address = na::Address::new(&peer.receive_text()?)?;
        let mut end = End::open()?;
        let to = end.context.lookup(&address)?;
        Ok(Self { peer, end, to, block: vec![7; SIZE] })
    }

    /// So many blocks, until the last one has come.
    fn send(&mut self, count: u64) -> Result<(), Error> {
        self.peer.control().send(count)?;
        for _ in 0..count {
            let mut message = loop {
                match self.end.context.message(self.to, SIZE) {
                    Err(na::Error::Again) => self.end.round(|_| ())?,
                    message => break message?,
                }
            };
            message.as_mut_slice().copy_from_slice(&self.block);
            let mut op = Op::SendUnexpected { to: self.to, message };
            while let Err(refused) = self.end.context.post(QUIET, op) {
                if !matches!(refused.error, na::Error::Again) {
                    return Err(refused.error.into());
                }
                op = refused.op;
                self.end.round(|_| ())?;
            }
        }
        let mut is_told = false;
        while !is_told {
            self.end.round(|it| is_told |= matches!(it, Completion::Control { .. }))?;
        }
        Ok(())
    }
}

impl Measure for Stream {
    fn subject(&self) -> Subject {
        let subject = Subject::new("block_stream", Unit::PerSecond);
        Subject { url: Some(URL.to_owned()), size: Some(SIZE as u64), ..subject }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.send(WARM_UP)?;
        let start = Instant::now();
        self.send(BLOCKS)?;
        Ok(BLOCKS as f64 / start.elapsed().as_secs_f64())
    }
}

/// The second process: receives as often as it is told.
pub(crate) fn serve(mut control: Control) -> Result<(), Error> {
    let mut end = End::open()?;
    control.send_text(end.context.address().as_str())?;
    while let Some(count) = control.next()? {
        let (mut left, mut from) = (count, None);
        while left > 0 {
            end.round(|it| {
                if let Completion::Unexpected { from: sender, message } = it {
                    std::hint::black_box(message.as_slice());
                    (left, from) = (left - 1, Some(sender));
                }
            })?;
        }
        let to = from.ok_or(Error::PeerGone("the blocks"))?;
        let op = Op::SendControl { to, message: Message::copied(&[1]) };
        end.context.post(QUIET, op).map_err(|refused| refused.error)?;
        while !end.context.flush() {
            end.round(|_| ())?;
        }
    }
    Ok(())
}

/// A context, and what its rounds bring.
struct End {
    context: Box<dyn na::Context>,
    done: Vec<Completion>,
    /// Kept as long as its context.
    _domain: std::sync::Arc<dyn na::Domain>,
}

impl End {
    fn open() -> Result<Self, Error> {
        let domain = hg::sm::SmPlugin.open(&na::Address::new(URL)?, &OpenOptions::listening())?;
        Ok(Self { context: domain.context(0)?, done: Vec::new(), _domain: domain })
    }

    fn round(&mut self, mut take: impl FnMut(Completion)) -> Result<(), Error> {
        self.context.progress(Instant::now(), &mut self.done)?;
        for it in self.done.drain(..) {
            if matches!(it, Completion::Gone { .. }) {
                return Err(Error::PeerGone("the blocks"));
            }
            take(it);
        }
        Ok(())
    }
}

const URL: &str = "sm://";
/// Bytes of a block.
const SIZE: usize = 4096;
/// Blocks of a repetition, and before it.
const BLOCKS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };
const WARM_UP: u64 = BLOCKS / 10;
