//! A rejection as plain text.

use crate::{contain, error_chain::text, extract::Rejection};

/// Why a message can't be handed to its handler. It has nothing of the application's any more, whose errors may panic
/// wherever they are asked or dropped.
pub(crate) struct Refusal {
    /// With everything beneath it, for the dead letter.
    pub(super) error: String,
    /// Without: what is beneath it has values of the payload, which are no log's business.
    pub(super) logged: String,
}

impl Refusal {
    pub(super) fn new(error: String) -> Self {
        let logged = error.clone();
        Self { error, logged }
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        let refusal = Self {
            error: text(&rejection),
            logged: contain::display(&rejection),
        };
        contain::dispose("the source of a rejection", rejection);
        refusal
    }
}
