//! Entry points of fuzz targets: what a stranger may say of himself, and the queue pairs and lines that he may name.

use hg_na_link::Greeting as _;

use crate::card::Greeted;
pub use crate::sharing::fuzzing::fuzz_sharing;

/// Any bytes: they are no greeting, or encode to themselves.
pub fn fuzz_greeting(bytes: &[u8]) {
    let Some(greeted) = Greeted::decode(bytes) else { return };
    let mut encoded = Vec::new();
    greeted.encode(&mut encoded);
    assert_eq!(encoded, bytes, "it says something else");
}
