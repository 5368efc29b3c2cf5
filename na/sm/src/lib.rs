//! Hydrargyrum's shared-memory transport
