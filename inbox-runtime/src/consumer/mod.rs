//! Runs a pipeline for many deliveries at a time: fetches them, hands them to workers, drains.
//!
//! ```text
//!  source ─▶ fetch ─┐
//!                   ├─▶ queue ─▶ worker ─▶ pipeline::execute ─▶ background_settle
//!  replay ──────────┘              ▲                │
//!                                  └── prefetch ◀───┘
//! ```

mod background_settle;
mod fetch;
mod prefetch;
mod queue;
mod replay;
mod run;
mod slots;
mod stop;
mod worker;

pub(crate) use run::Runner;
pub(crate) use stop::Stop;
