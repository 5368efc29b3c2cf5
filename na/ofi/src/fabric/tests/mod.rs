//! Tests of endpoints as a whole.

mod devices;
mod lent;
mod messages;
