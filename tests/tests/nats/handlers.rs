//! Handlers with the subscriptions that these tests need.

use inbox_runtime::{Handled, HandlerError, Json, Meta, State, inbox_handler};
use inbox_tests::{Order, Probe, handlers::handle};

macro_rules! handlers {
    ($($name:ident($($attribute:tt)*)),+ $(,)?) => {
        /// On SQLite.
        pub(crate) mod sqlite {
            use super::*;

            $(
                #[inbox_handler($($attribute)*)]
                async fn $name(
                    tx: &mut inbox_runtime::sqlx::SqliteConnection,
                    Json(order): Json<Order>,
                    meta: Meta,
                    State(probe): State<Probe>,
                ) -> Result<Handled, HandlerError> {
                    handle(tx, order, meta, probe).await
                }
            )+
        }
    };
}

handlers!(
    strict(
        group = "strict",
        subject = "order.created",
        ordered = true,
        backoff = "10ms..40ms"
    ),
    short(group = "short", subject = "short.created"),
    named(group = "named", subject = "order.created", stream = "SECOND"),
    fifth(group = "fifth", subject = "order.created", start = "sequence:5"),
    anything(group = "anything", subject = "*.created"),
);

/// For [`World::builder_of`](inbox_tests::World::builder_of).
pub(crate) const MODULE: &str = module_path!();
