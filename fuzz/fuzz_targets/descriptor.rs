//! Descriptors of remote memory travel in any RPC: any bytes are refused or decoded, an accepted one
//! has one wire form only, and no slice of it reaches beyond it.
#![no_main]

use hg_na::{DESCRIPTOR_MAX, Descriptor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, u64, &[u8])| {
    let (offset, len, bytes) = input;
    let Ok(descriptor) = Descriptor::decode(bytes) else { return };
    assert!(descriptor.opaque().len() <= DESCRIPTOR_MAX);
    assert_eq!(descriptor.encode(), bytes);
    if let Ok(slice) = descriptor.slice(offset, len) {
        let end = slice.offset().checked_add(slice.len()).expect("a slice ends below 2^64");
        assert!(end <= descriptor.len());
    }
});
