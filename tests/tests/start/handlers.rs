//! Handlers that can't all run together, or not at all. A test selects those that it is about.
#![allow(clippy::unused_async, reason = "a handler is async, whatever it does")]

use inbox_runtime::{Handled, HandlerError, State, inbox_handler, sqlx::SqliteConnection};

/// A state that no test gives.
#[derive(Clone)]
pub(crate) struct Missing;

pub(crate) const GOOD_GROUP: &str = "named.by-const";
pub(crate) const GOOD_SUBJECT: &str = "const.created";
const BAD_GROUP: &str = "a b";
const BAD_SUBJECT: &str = "orders..created";

/// The lines of the attributes below, for the tests of what names them.
pub(crate) mod place {
    pub(crate) const ONE: u32 = super::one::LINE;
    pub(crate) const OTHER: u32 = super::other::LINE;
    pub(crate) const STATEFUL: u32 = super::STATEFUL_LINE;
}

mod one {
    use super::*;

    pub(super) const LINE: u32 = line!() + 1;
    #[inbox_handler(group = "twins", subject = "twin.created")]
    async fn create(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod other {
    use super::*;

    pub(super) const LINE: u32 = line!() + 1;
    #[inbox_handler(group = "twins", subject = "twin.created")]
    async fn create(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[inbox_handler(group = "overlap", subject = "orders.*")]
async fn every_order(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "overlap", subject = "orders.created")]
async fn new_orders(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "deep-overlap", subject = "a.>")]
async fn everything(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "deep-overlap", subject = "a.*.c")]
async fn something(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "apart", subject = "orders.created")]
async fn apart_orders(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "apart", subject = "users.>")]
async fn apart_users(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

/// Of a group and a subject that a handler of another crate has too.
#[inbox_handler(group = "shipping", subject = "order.created")]
async fn elsewhere(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

const STATEFUL_LINE: u32 = line!() + 1;
#[inbox_handler(group = "stateful", subject = "order.created")]
async fn stateful(_tx: &mut SqliteConnection, State(_): State<Missing>) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = GOOD_GROUP, subject = GOOD_SUBJECT)]
async fn well_named(_tx: &mut SqliteConnection) -> Result<Handled, HandlerError> {
    Ok(Handled::Skipped)
}

#[inbox_handler(group = BAD_GROUP, subject = "order.created")]
async fn badly_named_group(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "bad-subject", subject = BAD_SUBJECT)]
async fn badly_named_subject(_tx: &mut SqliteConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[inbox_handler(group = "detached", subject = "order.created", ack = "at_least_once")]
async fn detached() -> Result<(), HandlerError> {
    Ok(())
}
