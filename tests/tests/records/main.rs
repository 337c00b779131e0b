//! Attempts and dead letters: which message they belong to, and that whatever a message contains can be recorded.

mod bad_input;
mod long_texts;
mod positions;
mod replays;
