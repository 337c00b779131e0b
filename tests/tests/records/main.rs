//! Attempts and dead letters: whose they are, and that whatever a message says can be recorded.

mod bad_input;
mod long_texts;
mod positions;
mod replays;
