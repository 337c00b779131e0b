//! The README, the guide and the examples: every command exists, every quoted output is printed, every program compiles.

mod lab;
mod outside;
mod readme;
#[cfg(feature = "postgres")]
mod takeover;
mod texts;
