//! Attempts and dead letters: which message they belong to, and that whatever a message contains can be recorded.

mod admin;
mod bad_input;
mod calls;
mod claim_sets;
mod long_texts;
mod positions;
mod replays;
