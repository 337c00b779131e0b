//! Dead letters: what is in them, which message they belong to, and their replays.

mod admin;
mod letters;
mod long_texts;
mod replay_leases;
mod replays;
mod reused_positions;
