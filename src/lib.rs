//! Hydrargyrum.
