//! What groups, subjects, times and numbers may be: a literal is checked when the attribute of `inbox-macros` expands, a `const` or a line of
//! `inbox.toml` when `inbox-runtime` starts. Not an API of its own: it changes with these two.
//!
//! Each check returns what to write instead as its error.

#![allow(
    clippy::missing_errors_doc,
    reason = "the error of each is the text of what is wrong"
)]

pub mod limits;
pub mod subject_rules;
