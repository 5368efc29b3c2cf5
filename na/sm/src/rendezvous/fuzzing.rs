//! Entry point of the fuzz target of all that comes over a connection's socket.

use super::packet::{PACKET_MAX, Packet};

/// For the fuzzer: whatever decodes can be encoded again, to the same bytes where nothing was cleaned.
pub fn fuzz_rendezvous(data: &[u8]) {
    if let Ok(packet) = Packet::decode(data) {
        let again = packet.encode();
        assert!(again.len() <= PACKET_MAX);
        assert_eq!(Packet::decode(&again).as_ref(), Ok(&packet));
        assert!(matches!(packet, Packet::Refuse(_)) || again == data);
    }
}
