//! Attempts and dead letters on PostgreSQL.

use sqlx::postgres::PgRow;

use super::{PostgresStore, Writer, errors::own as trouble, unavailable};

crate::store::tables::records! {
    PostgresRecords(PostgresStore), PgRow,
    now: "clock_timestamp()",
    later: ["clock_timestamp() + ", " * interval '1 millisecond'"],
    time: ["to_timestamp(", "::float8 / 1000)"],
    millis: ["(extract(epoch FROM ", ") * 1000)::bigint"],
}
