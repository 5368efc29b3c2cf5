//! The conformance suite that every Hydrargyrum transport plugin passes
