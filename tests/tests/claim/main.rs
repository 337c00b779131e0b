//! The inbox row and the effect: claimed first, committed together or not at all, once per group, whatever is redelivered.

mod claim_sets;
mod groups;
mod inbox_row;
mod redelivery;
mod rollback;
