//! A rejection as plain text.

use crate::{contain, error_chain::text, extract::Rejection};

/// Why a message can't be decoded for its handler. It owns nothing of the application's, whose errors may panic wherever
/// they are read or dropped.
pub(crate) struct RejectionText {
    /// With its sources, for the dead letter.
    pub(super) error: String,
    /// Without its sources, which may quote the payload: that does not belong into a log.
    pub(super) logged: String,
}

impl From<Rejection> for RejectionText {
    fn from(rejection: Rejection) -> Self {
        let rejected = Self {
            error: text(&rejection),
            logged: contain::display(&rejection),
        };
        contain::dispose("the source of a rejection", rejection);
        rejected
    }
}
