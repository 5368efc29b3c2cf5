//! Hydrargyrum's network abstraction: the contract that every transport plugin keeps
