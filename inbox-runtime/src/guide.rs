//! Pages on single subjects.

#[doc = include_str!("../docs/configuration.md")]
pub mod configuration {}
#[doc = include_str!("../docs/telemetry.md")]
pub mod telemetry {}
