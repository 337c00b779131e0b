//! Processes that die, at every point on the path of a message and at random: nothing is lost, and every effect is there once.

mod matrix;
mod processes;
