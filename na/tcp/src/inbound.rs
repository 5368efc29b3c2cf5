//! Cuts the stream of an open connection into frames. No I/O: bytes in, items out.
//!
//! A long body that is not whole yet, and the data of a transfer, can be read from the socket straight
//! to where they belong ([`Inbound::gap`]); everything else passes through a buffer that all
//! connections of a context share, so that an idle connection keeps none.

use hg_na::Message;

use crate::frame::{HEADER, Header};

/// A body that lacks at least so much is read into its own memory.
const DIRECT_MIN: usize = 4096;

/// What the next bytes of the stream are.
#[derive(Debug)]
enum State {
    Header { bytes: [u8; HEADER], have: usize },
    Body { header: Header, bytes: Vec<u8>, have: usize },
    Data { header: Header, left: usize },
}

const START: State = State::Header { bytes: [0; HEADER], have: 0 };

/// Something that has arrived.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    /// A whole frame.
    Frame(Header, Message),
    /// The next bytes of a transfer.
    Data(Header, &'a [u8]),
}

/// Where the next bytes of the stream belong, when there are many of them.
#[derive(Debug)]
pub(crate) enum Gap<'a> {
    Nowhere,
    Body(&'a mut [u8]),
    Data(Header, usize),
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Inbound(State);

impl Inbound {
    /// Before the first frame.
    pub(crate) fn new() -> Self {
        Self(START)
    }

    /// Whether the stream stands between two frames.
    #[cfg(test)]
    pub(crate) fn is_between_frames(&self) -> bool {
        matches!(self.0, State::Header { have: 0, .. })
    }

    /// The next item of `input`, which is shortened by it; `None` when more bytes are needed.
    ///
    /// # Errors
    /// What is wrong with the input.
    #[inline]
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Item<'a>>, &'static str> {
        loop {
            match &mut self.0 {
                State::Header { bytes, have: 0 } if input.len() >= HEADER => {
                    let (header, rest) = input.split_first_chunk().expect("as long as a header");
                    let header = Header::decode(header)?;
                    *input = rest;
                    if !header.kind.is_data()
                        && let Some((body, rest)) = rest.split_at_checked(header.body())
                    {
                        *input = rest;
                        return Ok(Some(Item::Frame(header, Message::copied(body))));
                    }
                    let _ = bytes;
                    self.begin(header);
                }
                State::Header { bytes, have } => {
                    *have += take(input, &mut bytes[*have..]);
                    if *have < HEADER {
                        return Ok(None);
                    }
                    let header = Header::decode(bytes)?;
                    self.begin(header);
                }
                State::Body { bytes, have, .. } => {
                    *have += take(input, &mut bytes[*have..]);
                    return Ok(self.whole_body());
                }
                State::Data { header, left } => {
                    let (header, len) = (*header, (*left).min(input.len()));
                    if len == 0 {
                        return Ok(None);
                    }
                    let (data, rest) = input.split_at(len);
                    *input = rest;
                    self.passed(len);
                    return Ok(Some(Item::Data(header, data)));
                }
            }
        }
    }

    /// What has come of a body that is not whole.
    pub(crate) fn in_part(&self) -> usize {
        match &self.0 {
            State::Body { have, .. } => *have,
            State::Header { .. } | State::Data { .. } => 0,
        }
    }

    /// Where many bytes can be read to directly.
    pub(crate) fn gap(&mut self) -> Gap<'_> {
        match &mut self.0 {
            State::Body { bytes, have, .. } if bytes.len() - *have >= DIRECT_MIN => {
                Gap::Body(&mut bytes[*have..])
            }
            State::Data { header, left } if *left >= DIRECT_MIN => Gap::Data(*header, *left),
            _ => Gap::Nowhere,
        }
    }

    /// `len` bytes of the gap's body were read; the frame, when it is whole.
    pub(crate) fn filled(&mut self, len: usize) -> Option<Item<'static>> {
        if let State::Body { have, .. } = &mut self.0 {
            *have += len;
        }
        self.whole_body()
    }

    /// `len` bytes of the gap's data were read.
    pub(crate) fn passed(&mut self, len: usize) {
        if let State::Data { left, .. } = &mut self.0 {
            *left -= len;
            if *left == 0 {
                self.0 = START;
            }
        }
    }

    fn begin(&mut self, header: Header) {
        self.0 = if header.kind.is_data() {
            State::Data { header, left: header.body() }
        } else {
            State::Body { header, bytes: vec![0; header.body()], have: 0 }
        };
    }

    fn whole_body(&mut self) -> Option<Item<'static>> {
        let State::Body { header, bytes, have } = &mut self.0 else { return None };
        if *have < bytes.len() {
            return None;
        }
        let (header, bytes) = (*header, std::mem::take(bytes));
        self.0 = START;
        let is_short = bytes.len() <= hg_na::INLINE_MAX;
        let message = if is_short { Message::copied(&bytes) } else { Message::from(bytes) };
        Some(Item::Frame(header, message))
    }
}

fn take(input: &mut &[u8], into: &mut [u8]) -> usize {
    let len = input.len().min(into.len());
    let (now, later) = input.split_at(len);
    into[..len].copy_from_slice(now);
    *input = later;
    len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::*;
    use crate::frame::{Kind, LinkId};

    const LINK: LinkId = LinkId { side: 1, epoch: 3 };

    fn frame(kind: Kind, word: u64, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).unwrap();
        [&Header { len, kind, link: LINK, word }.encode(), body].concat()
    }

    /// Everything in `input`, as (kind, word, bytes); neighbouring data is one.
    fn parsed(inbound: &mut Inbound, mut input: &[u8], into: &mut Vec<(Kind, u64, Vec<u8>)>) {
        while let Some(item) = inbound.next(&mut input).unwrap() {
            match item {
                Item::Frame(header, message) => {
                    into.push((header.kind, header.word, message.into_vec()));
                }
                Item::Data(header, data) => match into.last_mut() {
                    Some((kind, word, bytes)) if *kind == header.kind && *word == header.word => {
                        bytes.extend(data);
                    }
                    _ => into.push((header.kind, header.word, data.to_vec())),
                },
            }
        }
        assert!(input.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_are_the_same_however_the_stream_is_cut(
            lens in proptest::collection::vec(0usize..200, 1..12),
            cuts in proptest::collection::vec(1usize..64, 1..12),
        ) {
            let (mut stream, mut wanted) = (Vec::new(), Vec::new());
            for (number, len) in (0u64..).zip(lens) {
                let body: Vec<u8> = (0..len).map(|place| place.to_le_bytes()[0]).collect();
                let kind = if number % 3 == 2 && len > 0 { Kind::PutData } else { Kind::Unexpected };
                stream.extend(frame(kind, number, &body));
                wanted.push((kind, number, body));
            }
            let (mut inbound, mut seen) = (Inbound::new(), Vec::new());
            let (mut rest, mut cut) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cut.next().unwrap()));
                parsed(&mut inbound, now, &mut seen);
                rest = later;
            }
            prop_assert_eq!(seen, wanted);
            prop_assert_eq!(inbound.is_between_frames(), true);
        }
    }

    #[test]
    fn long_bodies_and_data_show_a_gap_that_can_be_filled_elsewhere() {
        let mut inbound = Inbound::new();
        let long = frame(Kind::Unexpected, 0, &[7; 10_000]);
        assert!(inbound.next(&mut &long[..100]).unwrap().is_none());
        let Gap::Body(rest) = inbound.gap() else { panic!("no gap") };
        let len = rest.len();
        rest.copy_from_slice(&long[100..]);
        let Some(Item::Frame(_, message)) = inbound.filled(len) else { panic!("not whole") };
        assert_eq!(message.into_vec(), [7; 10_000]);
        let data = frame(Kind::GetData, 5, &[8; 5000]);
        let mut input = &data[..HEADER];
        assert!(inbound.next(&mut input).unwrap().is_none());
        assert!(matches!(inbound.gap(), Gap::Data(header, 5000) if header.word == 5));
        inbound.passed(5000);
        assert!(inbound.is_between_frames());
    }
}
