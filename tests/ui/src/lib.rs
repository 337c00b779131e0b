//! Nothing: the tests of this crate are files that must not compile. See `README.md`.
