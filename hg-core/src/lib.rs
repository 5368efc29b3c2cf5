//! Hydrargyrum's RPC state machines, without I/O, clock or thread
