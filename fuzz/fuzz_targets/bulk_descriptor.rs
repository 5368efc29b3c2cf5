//! Descriptors of bulk memory travel in any RPC: any bytes are refused or are the wire form of exactly one
//! descriptor, whose regions and bytes are as many as it claims; and no range of it reaches beyond it.
#![no_main]

use hg_bulk::{Descriptor, RemoteRange};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, u64, &[u8])| {
    let (start, end, bytes) = input;
    let Ok(descriptor) = Descriptor::decode(bytes) else { return };
    assert_eq!(descriptor.as_bytes(), bytes);
    let regions = descriptor.regions().iter().map(hg_na::Descriptor::len);
    let sum =
        regions.fold(0_u64, |sum, len| sum.checked_add(len).expect("sizes that wrap are refused"));
    let eager = descriptor.eager().map_or(0, <[u8]>::len) as u64;
    assert_eq!(descriptor.len(), sum + eager);
    assert!(descriptor.regions().len() <= bytes.len());
    if start > end {
        return;
    }
    match descriptor.range(start..end) {
        Ok(range) => check(&range),
        Err(_) => assert!(end > descriptor.len()),
    }
});

fn check(range: &RemoteRange) {
    let end = range.offset().checked_add(range.len()).expect("a range ends below 2^64");
    assert!(end <= range.descriptor().len());
    if let Some(bytes) = range.eager() {
        assert_eq!(bytes.len() as u64, range.len());
    }
    if let Some(place) = range.only_region() {
        let slice = range.slice(place, range.len()).expect("that region holds the range");
        assert_eq!(slice.len(), range.len());
    }
}
