//! Entry point of the fuzz target of all that comes over a connection's socket.

use super::{
    hello::{GREETING_MAX, Greeting},
    mappings::MapMessage,
};

/// For the fuzzer: whatever decodes can be encoded again, to the same bytes where nothing was cleaned.
pub fn fuzz_rendezvous(data: &[u8]) {
    if let Ok(message) = MapMessage::decode(data) {
        assert!(MapMessage::is_meant(data) && message.encode() == data);
    }
    if let Ok(greeting) = Greeting::decode(data) {
        let again = greeting.encode();
        assert!(again.len() <= GREETING_MAX);
        assert_eq!(Greeting::decode(&again).as_ref(), Ok(&greeting));
    }
}
