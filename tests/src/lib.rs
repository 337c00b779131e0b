//! The test harness: a fresh world of broker and database for each test, handlers that do what the test tells them, and
//! what the broker and the database say about it afterwards.
//!
//! Every test is written once, as an `async fn name<B: TestBroker, D: TestDatabase>()`, and [`suite!`] makes it a test on
//! every pair of broker and database.

mod broker;
mod campaign;
pub mod crashes;
mod database;
mod flaky;
pub mod guide;
pub mod handlers;
mod http;
mod linked;
pub mod ordered;
pub mod outbox_handlers;
mod probe;
pub mod process;
mod script;
pub mod servers;
mod world;

#[cfg(feature = "kafka")]
pub use broker::KafkaCluster;
pub use broker::{EmbeddedFile, EmbeddedMemory, Settled, TestBroker};
#[cfg(feature = "nats")]
pub use broker::{JetStream, NatsJetStream};
pub use campaign::{KillCampaign, Published, Publisher};
#[cfg(feature = "postgres")]
pub use database::{PostgresDatabase, pool};
pub use database::{SqliteFile, TestConnection, TestDatabase};
pub use flaky::Flaky;
pub use http::ask;
pub use linked::linked;
pub use probe::{Call, Fragile, Latch, Order, Probe, Step};
pub use script::Script;
pub use world::{World, eventually, in_time, next, nothing_more};

/// As [`lean_suite!`], for tests that need other processes: the pairs that those can reach.
#[macro_export]
macro_rules! process_suite {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::suite!(@pair embedded_sqlite, $crate::EmbeddedFile, $crate::SqliteFile, $($(#[$attribute])* $name),+);
        $crate::suite!(@servers_postgres $($(#[$attribute])* $name),+);
        #[cfg(all(feature = "all-pairs", feature = "postgres"))]
        $crate::suite!(@pair embedded_postgres, $crate::EmbeddedFile, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
        #[cfg(feature = "all-pairs")]
        $crate::suite!(@servers_sqlite $($(#[$attribute])* $name),+);
    };
}

/// As [`suite!`], for what a broker's choice of database makes no difference to: NATS and Kafka on PostgreSQL only. The feature
/// `all-pairs` has both on SQLite too.
#[macro_export]
macro_rules! lean_suite {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::suite!(@embedded $($(#[$attribute])* $name),+);
        $crate::suite!(@servers_postgres $($(#[$attribute])* $name),+);
        #[cfg(feature = "all-pairs")]
        $crate::suite!(@servers_sqlite $($(#[$attribute])* $name),+);
    };
}

/// As [`suite!`], for what is the same on every broker: the embedded one is enough.
#[macro_export]
macro_rules! embedded_suite {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::suite!(@embedded $($(#[$attribute])* $name),+);
    };
}

/// As [`suite!`], for tests that bring their own broker: `async fn name<D: TestDatabase>()`, one of each for every database.
#[macro_export]
macro_rules! database_suite {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::database_suite!(@database sqlite, $crate::SqliteFile, $($(#[$attribute])* $name),+);
        #[cfg(feature = "postgres")]
        $crate::database_suite!(@database postgres, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
    };
    (@database $module:ident, $database:ty, $($(#[$attribute:meta])* $name:ident),+) => {
        mod $module {
            $(
                $(#[$attribute])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name::<$database>().await;
                }
            )+
        }
    };
}

/// Makes tests of generic test functions: one of each name for every pair of broker and database. The embedded broker is in a
/// file with the one database and in memory with the other; the feature `all-pairs` has both with both.
#[macro_export]
macro_rules! suite {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::suite!(@embedded $($(#[$attribute])* $name),+);
        $crate::suite!(@servers $($(#[$attribute])* $name),+);
    };
    (@embedded $($(#[$attribute:meta])* $name:ident),+) => {
        $crate::suite!(@pair embedded_sqlite, $crate::EmbeddedFile, $crate::SqliteFile, $($(#[$attribute])* $name),+);
        #[cfg(feature = "postgres")]
        $crate::suite!(@pair memory_postgres, $crate::EmbeddedMemory, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
        #[cfg(feature = "all-pairs")]
        $crate::suite!(@pair memory_sqlite, $crate::EmbeddedMemory, $crate::SqliteFile, $($(#[$attribute])* $name),+);
        #[cfg(all(feature = "all-pairs", feature = "postgres"))]
        $crate::suite!(@pair embedded_postgres, $crate::EmbeddedFile, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
    };
    (@servers $($(#[$attribute:meta])* $name:ident),+) => {
        $crate::suite!(@servers_postgres $($(#[$attribute])* $name),+);
        $crate::suite!(@servers_sqlite $($(#[$attribute])* $name),+);
    };
    (@servers_postgres $($(#[$attribute:meta])* $name:ident),+) => {
        #[cfg(all(feature = "kafka", feature = "postgres"))]
        $crate::suite!(@pair kafka_postgres, $crate::KafkaCluster, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
        #[cfg(all(feature = "nats", feature = "postgres"))]
        $crate::suite!(@pair nats_postgres, $crate::NatsJetStream, $crate::PostgresDatabase, $($(#[$attribute])* $name),+);
    };
    (@servers_sqlite $($(#[$attribute:meta])* $name:ident),+) => {
        #[cfg(feature = "kafka")]
        $crate::suite!(@pair kafka_sqlite, $crate::KafkaCluster, $crate::SqliteFile, $($(#[$attribute])* $name),+);
        #[cfg(feature = "nats")]
        $crate::suite!(@pair nats_sqlite, $crate::NatsJetStream, $crate::SqliteFile, $($(#[$attribute])* $name),+);
    };
    (@pair $pair:ident, $broker:ty, $database:ty, $($(#[$attribute:meta])* $name:ident),+) => {
        mod $pair {
            $(
                $(#[$attribute])*
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name::<$broker, $database>().await;
                }
            )+
        }
    };
}

/// The README's programs, compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
