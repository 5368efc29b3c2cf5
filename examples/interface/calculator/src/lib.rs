//! What origin and target of the calculator share: declarations, no bodies.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The error of [`divide`].
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{dividend} cannot be divided by zero")]
pub struct DivisionByZero {
    /// What was to be divided.
    pub dividend: i64,
}

/// Divides `a` by `b`, towards zero.
#[hg::rpc]
pub fn divide(a: i64, b: i64) -> Result<i64, DivisionByZero>;

/// Adds numbers to the target's total and gives the new total.
#[hg::rpc]
pub fn accumulate(numbers: Vec<i64>) -> i64;
