//! Drives Hydrargyrum's state machines: threads, clock, wait set
