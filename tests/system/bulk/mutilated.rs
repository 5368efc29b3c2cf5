//! Descriptors that no honest process makes, sent to a process that uses whatever it gets: a clear error, no memory made
//! of what they claim, and nothing touched.

use hg::{
    CallError, Engine, Request,
    bulk::{Descriptor, Rights},
};

use super::{Scene, end_of, listening, owner, patterned};
use crate::{
    common::{Random, Watchdog, process::peak_rss_kib},
    transports::bulk_urls,
};

const LEN: usize = 10_000;
/// What a process may need more for some hundred refusals, in KiB.
const REFUSALS_KIB: u64 = 16 * 1024;

/// Uses memory in every way; gives how each ended.
#[hg::rpc(name = "mutilated::swallow")]
async fn swallow(request: &Request, what: Descriptor) -> Result<Vec<String>, String> {
    let engine = request.engine();
    let owner = owner(request, &what)?;
    let text = |error: hg::Error| error.to_string();
    let mut ends =
        vec![end_of(&engine.fetch(&owner, &what).await), end_of(&engine.view(&owner, &what).await)];
    let local = engine.expose(vec![0xff; 100], Rights::empty()).map_err(text)?;
    for from in [0, what.len().saturating_sub(100)] {
        let Ok(range) = what.range(from..from + 100) else { continue };
        ends.push(end_of(&engine.pull(&owner, range.clone(), &local).await));
        local.write(0, &[0xff; 100]).map_err(text)?;
        ends.push(end_of(&engine.push(&owner, &local, range).await));
    }
    Ok(ends.into_iter().map(str::to_owned).collect())
}

/// The same for bytes that need not be a descriptor, although their type says so.
mod raw {
    use hg::bulk::Descriptor;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) struct Claimed(pub(super) Vec<u8>);

    impl Serialize for Claimed {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for Claimed {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Descriptor::deserialize(deserializer).map(|it| Self(it.as_bytes().to_vec()))
        }
    }

    #[hg::rpc(name = "mutilated::swallow")]
    pub(super) fn swallow(what: Claimed) -> Result<Vec<String>, String>;
}

pub(super) fn serve(engine: &Engine) {
    engine.register(swallow).expect("a fresh registry");
}

impl Scene {
    /// How each use ended; nothing when they are no descriptor.
    fn swallow(&self, bytes: &[u8]) -> Vec<String> {
        match self.engine.call(raw::swallow, &self.peer, (raw::Claimed(bytes.to_vec()),)).wait() {
            Ok(ends) => ends,
            Err(CallError::Decode(text)) => {
                assert!(text.contains("mutilated::swallow"), "{text}");
                Vec::new()
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn is_no_descriptor(&self, bytes: &[u8]) {
        assert_eq!(self.swallow(bytes), Vec::<String>::new(), "{bytes:?}");
    }

    fn is_refused(&self, bytes: &[u8]) {
        let ends = self.swallow(bytes);
        assert!(!ends.iter().any(|end| end == "Ok"), "{ends:?}: {bytes:?}");
    }
}

/// Where the only region of a descriptor begins: version, rights, length of the token, size, token.
fn region_of(bytes: &[u8]) -> usize {
    16 + usize::from(bytes[3]) + 2
}

/// With another size, in the header and in the only region.
pub(crate) fn claiming(bytes: &[u8], len: u64) -> Vec<u8> {
    let (mut bytes, region) = (bytes.to_vec(), region_of(bytes));
    bytes[8..16].copy_from_slice(&len.to_le_bytes());
    bytes[region + 4..region + 12].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Twice the only region, of sizes whose sum wraps around to the size that the header names.
fn wrapping(bytes: &[u8]) -> Vec<u8> {
    let region = region_of(bytes);
    let mut one = bytes[region - 2..].to_vec();
    one[6..14].copy_from_slice(&(u64::MAX / 2 + 1 + LEN as u64 / 2).to_le_bytes());
    let mut both = [&bytes[..region - 2], &one, &one].concat();
    both[4..8].copy_from_slice(&2_u32.to_le_bytes());
    both
}

#[test]
fn mutilated_descriptors_are_refused_without_memory_and_touch_nothing() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        let bulk = scene.engine.expose(patterned(LEN), Rights::all()).unwrap();
        let neighbour = scene.engine.expose(patterned(LEN), Rights::all()).unwrap();
        let good = bulk.descriptor().as_bytes().to_vec();
        // What the transport needs for its first transfers is not theirs.
        let first = scene.engine.expose(patterned(LEN), Rights::all()).unwrap();
        assert_eq!(scene.swallow(first.descriptor().as_bytes()), vec!["Ok"; 6]);
        let before = peak_rss_kib(scene.child.pid());
        for len in 0..good.len() {
            scene.is_no_descriptor(&good[..len]);
        }
        scene.is_no_descriptor(&[&good[..], &[0]].concat());
        for count in [0, 2, 1 << 20, 1 << 31, u32::MAX] {
            let mut bytes = good.clone();
            bytes[4..8].copy_from_slice(&count.to_le_bytes());
            scene.is_no_descriptor(&bytes);
        }
        scene.is_no_descriptor(&wrapping(&good));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            scene.is_refused(&bytes);
        }
        let lied = scene.engine.expose(vec![7; LEN], Rights::READ).unwrap();
        for len in [LEN as u64 + 1, 1 << 40, 1 << 62, u64::MAX] {
            let ends = scene.swallow(&claiming(lied.descriptor().as_bytes(), len));
            // The beginning is there. Nobody is served what is not.
            let (whole, beginning, end) = (&ends[..2], &ends[2..4], &ends[4..]);
            assert!(!whole.contains(&"Ok".to_owned()), "{len}: {whole:?}");
            assert_eq!(beginning, ["Ok", "Denied"], "{len}");
            assert!(!end.contains(&"Ok".to_owned()), "{len}: {end:?}");
        }
        let grown = peak_rss_kib(scene.child.pid()) - before;
        assert!(grown < REFUSALS_KIB, "{grown} KiB more");
        assert_eq!(bulk.into_vec().unwrap(), patterned(LEN));
        assert_eq!(neighbour.into_vec().unwrap(), patterned(LEN));
    }
}

#[test]
fn descriptors_of_the_same_memory_differ_in_more_bits_than_can_be_guessed() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let engine = listening(url);
        let mut memory = patterned(LEN);
        let (mut ones, mut zeros) = (Vec::new(), Vec::new());
        for _ in 0..64 {
            let bulk = engine.expose(memory, Rights::all()).unwrap();
            let bytes = bulk.descriptor().as_bytes().to_vec();
            ones.resize(bytes.len(), 0);
            zeros.resize(bytes.len(), 0);
            ones.iter_mut().zip(&bytes).for_each(|(seen, byte)| *seen |= byte);
            zeros.iter_mut().zip(&bytes).for_each(|(seen, byte)| *seen |= !byte);
            memory = bulk.into_vec().unwrap();
        }
        // A counter, and where memory lies, change fewer.
        let changed: u32 =
            ones.iter().zip(zeros).map(|(one, zero)| (one & zero).count_ones()).sum();
        assert!(changed >= 120, "{changed} bits change");
    }
}

#[test]
fn a_guessed_and_an_old_token_are_refused_and_a_good_descriptor_still_works() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        let bulk = scene.engine.expose(patterned(LEN), Rights::all()).unwrap();
        let good = bulk.descriptor().as_bytes().to_vec();
        let mut random = Random::new(5);
        for _ in 0..50 {
            let (mut bytes, token) = (good.clone(), region_of(&good) + 12);
            let guessed = random.bytes(bytes.len() - token);
            bytes[token..].copy_from_slice(&guessed);
            scene.is_refused(&bytes);
        }
        assert_eq!(bulk.to_vec().unwrap(), patterned(LEN));
        let all_good = vec!["Ok"; 6];
        assert_eq!(scene.swallow(&good), all_good);
        let old = bulk.into_vec().unwrap();
        assert_eq!(scene.swallow(&good), vec!["Stale"; 6]);
        let again = scene.engine.expose(patterned(LEN), Rights::all()).unwrap();
        assert_eq!(scene.swallow(&good), vec!["Stale"; 6]);
        assert_eq!(again.to_vec().unwrap(), patterned(LEN));
        let fresh = again.descriptor();
        assert_eq!(scene.swallow(fresh.as_bytes()), all_good);
        assert_eq!((old[0], old[LEN - 1]), (0xff, 0xff), "pushed before it was taken back");
    }
}
