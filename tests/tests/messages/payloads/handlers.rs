//! Handlers whose arguments are the point: each writes what it was given as its effect.

use inbox_runtime::{Header, Json, Meta, inbox_handler, sqlx};
use inbox_tests::{Order, TestConnection};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Lenient, Regions, Tenant};

#[derive(Deserialize)]
struct Number {
    n: u64,
}

#[derive(Deserialize)]
struct Doc {
    n: u64,
    note: Option<String>,
}

#[derive(Deserialize)]
struct Invoice {
    lines: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    amount: u64,
}

macro_rules! handler {
    ($conn:ty, $name:ident, $group:literal, $subject:literal, $argument:ident: $ty:ty, $text:expr) => {
        #[inbox_handler(group = $group, subject = $subject)]
        async fn $name(tx: &mut $conn, $argument: $ty, meta: Meta) -> sqlx::Result<()> {
            tx.effect(meta.group(), &$text).await
        }
    };
}

macro_rules! handlers {
    ($module:ident, $conn:ty) => {
        mod $module {
            use super::*;

            handler!($conn, number, "number", "p.number", json: Json<Number>, json.n.to_string());
            handler!($conn, doc, "doc", "p.doc", json: Json<Doc>, format!("{} {:?}", json.n, json.note));
            handler!($conn, invoice, "invoice", "p.invoice", json: Json<Invoice>,
                json.lines.iter().map(|line| line.amount).sum::<u64>().to_string());
            handler!($conn, value, "value", "p.value", json: Json<Value>, json.is_array().to_string());
            handler!($conn, raw_json, "raw-json", "p.raw-json", json: Json<Box<RawValue>>, json.get().len().to_string());
            handler!($conn, optional, "optional", "p.optional", json: Option<Json<Order>>,
                json.map_or_else(|| "none".to_owned(), |json| json.0.order_id));
            handler!($conn, tenant, "tenant", "p.tenant", tenant: Header<Tenant>, tenant.value());
            handler!($conn, maybe_tenant, "maybe-tenant", "p.maybe-tenant", tenant: Option<Header<Tenant>>,
                tenant.map_or_else(|| "none".to_owned(), Header::into_value));
            handler!($conn, regions, "regions", "p.regions", regions: Regions, regions.0.join("+"));
            handler!($conn, lenient, "lenient", "p.lenient", order: Lenient,
                order.map_or_else(|rejection| rejection.to_string(), |order| order.0.order_id));
        }
    };
}

handlers!(sqlite, sqlx::SqliteConnection);
#[cfg(feature = "postgres")]
handlers!(postgres, sqlx::PgConnection);
