//! Addresses come from peers, files and command lines: any text is refused or split, and an accepted
//! one keeps what its documentation says.
#![no_main]

use hg_na::{ADDRESS_MAX, Address};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(address) = Address::new(text) else { return };
    assert!(address.as_str().len() <= ADDRESS_MAX);
    assert!(address.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
    assert_eq!(format!("{}://{}", address.scheme(), address.rest()), text);
});
