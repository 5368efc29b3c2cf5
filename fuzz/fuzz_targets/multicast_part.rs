//! A part of a copy from whoever sends it: what is read of it lies inside of the files that were offered.
#![no_main]

use hg_multicast_copy::{
    offer::{BLOCK_MIN, Entry, Offer, What},
    part::Reader,
    path::Below,
};
use libfuzzer_sys::fuzz_target;

fn offer() -> Offer {
    let entry = |(path, what): (&str, What)| Entry {
        path: Below::new(path).expect("a path"),
        what,
        mode: 0o644,
        mtime: (0, 0),
    };
    let entries = [
        ("folder", What::Folder),
        ("folder/file", What::File(BLOCK_MIN.into())),
        ("short", What::File(3)),
        ("empty", What::File(0)),
        ("long", What::File(u64::MAX)),
        ("link", What::Link(b"short".to_vec().into())),
    ];
    let entries = entries.map(entry).into();
    Offer { block: BLOCK_MIN, force: false, preserve: false, into: None, entries }
}

fuzz_target!(|bytes: &[u8]| {
    let offer = offer();
    let Ok(reader) = Reader::new(bytes) else { return };
    let size = |entry: u32| match offer.entries[entry as usize].what {
        What::File(size) => size,
        What::Folder | What::Link(_) => panic!("no file"),
    };
    for block in reader.blocks(&offer).unwrap_or_default() {
        let end = block.from.checked_add(block.bytes.len() as u64);
        assert!(!block.bytes.is_empty() && end.is_some_and(|end| end <= size(block.entry)));
    }
    for (entry, _) in reader.ends(&offer).unwrap_or_default() {
        size(entry);
    }
});
