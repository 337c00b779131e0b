//! The guide: one page for each question that comes up sooner or later.
//!
//! | page | question |
//! |---|---|
//! | [guarantee] | What is guaranteed, and what is not? |
//! | [ack_strategies] | When is a message acknowledged, and which choice is mine? |
//! | [ids] | By which id is a message deduplicated? |
//! | [failing] | What happens when a handler fails, and how do I get a message back? |
//! | [outbox] | How do I publish, in the transaction of what I write? |
//! | [scaling] | How do I run more at a time, more processes, more services? |
//! | [testing] | How do I test a handler, and a crash? |
//! | [configuration] | What can be set, and where? |
//! | [telemetry] | What does it show of itself? |
//! | [nats] | What must I know of NATS: rights, streams that change, where a group begins? |
//! | [from_python] | I come from omni-box or nats-outbox: what is different? |

#[doc = include_str!("../docs/guarantee.md")]
pub mod guarantee {}

#[doc = include_str!("../docs/ack_strategies.md")]
pub mod ack_strategies {}

#[doc = include_str!("../docs/ids.md")]
pub mod ids {}

#[doc = include_str!("../docs/failing.md")]
pub mod failing {}

#[doc = include_str!("../docs/outbox.md")]
pub mod outbox {}

#[doc = include_str!("../docs/scaling.md")]
pub mod scaling {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/from_python.md")]
pub mod from_python {}

#[doc = include_str!("../docs/configuration.md")]
pub mod configuration {}

#[doc = include_str!("../docs/nats.md")]
pub mod nats {}

#[doc = include_str!("../docs/telemetry.md")]
pub mod telemetry {}
