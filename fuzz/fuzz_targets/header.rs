//! The header of every RPC message: any bytes are refused or decoded; what is accepted lies within the
//! message, and what this version writes again reads the same.
#![no_main]

use hg_core::header::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((header, payload_at)) = Header::decode(bytes) else { return };
    let payload = &bytes[payload_at..];
    let mut again = vec![0; header.encoded_len()];
    again.extend(payload);
    header.encode(&mut again);
    let (decoded, at) = Header::decode(&again).expect("what was encoded is well-formed");
    assert_eq!((decoded, &again[at..]), (header, payload));
});
