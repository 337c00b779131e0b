//! Every failure has a fate: which errors are the handler's own, how often they are tried again, and what a handler that
//! breaks its transaction is told.

mod attempts;
mod errors;
mod infrastructure;
mod seal;
mod swallowed;
