//! The attribute that makes a function an RPC
