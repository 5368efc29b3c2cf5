//! Arguments and results come from peers: any bytes are refused or decoded by the default codec, an
//! accepted value has one wire form only, and owns no more elements than there were bytes.
#![no_main]

use hg_core::codec::{self, Codec};
use libfuzzer_sys::fuzz_target;

type Value<'a> = (Vec<(u32, String)>, Option<bool>, Vec<Option<u64>>, Result<i8, char>, &'a str);

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = codec::Default::decode::<Value>(bytes) else { return };
    assert!(value.0.len() + value.2.len() <= bytes.len());
    let mut again = vec![0; bytes.len()];
    let used = codec::Default::encode(&value, &mut again).expect("what was decoded fits again");
    assert_eq!(&again[..used], bytes);
});
