//! The effect exists once: what the founding documents promise of a delivery, and of the next one.

mod claim;
mod failure;
mod groups;
mod redelivery;
