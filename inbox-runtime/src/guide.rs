//! The guide: one page for each question that comes up sooner or later.
//!
//! | page | question |
//! |---|---|
//! | [guarantee] | What is guaranteed, and what is not? |
//! | [ack_strategies] | When is a message acknowledged, and which choice is mine? |
//! | [ids] | By what is a message known again? |
//! | [failing] | What happens when a handler fails, and how do I get a message back? |
//! | [scaling] | How do I run more at a time, more processes, more services? |
//! | [testing] | How do I test a handler, and a crash? |
//! | [from_python] | I come from omni-box or nats-outbox: what is different? |

#[doc = include_str!("../docs/guarantee.md")]
pub mod guarantee {}

#[doc = include_str!("../docs/ack_strategies.md")]
pub mod ack_strategies {}

#[doc = include_str!("../docs/ids.md")]
pub mod ids {}

#[doc = include_str!("../docs/failing.md")]
pub mod failing {}

#[doc = include_str!("../docs/scaling.md")]
pub mod scaling {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/from_python.md")]
pub mod from_python {}
