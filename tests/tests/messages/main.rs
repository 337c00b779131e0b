//! What is in a message: payloads, headers, ids, and input that is malformed or hostile.

mod bad_input;
mod ids;
mod payloads;
