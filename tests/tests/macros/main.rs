//! The attribute: what an expansion looks like from the code around it.
#![allow(clippy::unused_async, reason = "a handler is async, whether it waits or not")]

mod attributes;
mod hygiene;
