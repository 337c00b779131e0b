//! The first connection: whether the server answers, whether waiting helps where it doesn't, and whether a pooler stands
//! before it.

use std::{error::Error as StdError, time::Duration};

use sqlx::{
    ConnectOptions, Connection, PgConnection, Row,
    postgres::{PgConnectOptions, PgDatabaseError},
};

use super::{errors, pool::PostgresStore, simple_query::query_first};
use crate::{error_chain::text_of, store::ConnectError};

/// How long a server may take to answer a first connection.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// How often two connections are asked in every order which server process serves them.
const ROUNDS: usize = 3;

impl PostgresStore {
    /// Connects beside the pool, which would retry for its whole `acquire_timeout` and wouldn't tell the cause.
    pub(super) async fn connect_once(&self) -> Result<(), ConnectError> {
        let options = self.pool.connect_options();
        if self.pool.is_closed() {
            return Err(refused(&options, sqlx::Error::PoolClosed));
        }
        let connected = tokio::time::timeout(ANSWER_WAIT, options.connect()).await;
        let mut conn = match connected {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) if errors::is_transient(&error) => return Err(unavailable(&options, innermost(error))),
            Ok(Err(error)) => return Err(refused(&options, error)),
            Err(_) => {
                return Err(unavailable(
                    &options,
                    format!("no answer within {ANSWER_WAIT:?}").into(),
                ));
            }
        };
        if !self.is_pooled() && is_pooled(&mut conn, &options).await {
            tracing::warn!(
                server = place(&options),
                "a transaction-pooling proxy stands before PostgreSQL: its connections are used in its way from now on; \
                 set INBOX_TRANSACTION_POOLER=true, or add `.transaction_pooler()`, to say so yourself"
            );
            self.set_pooled();
        }
        let _ = tokio::time::timeout(ANSWER_WAIT, conn.close()).await;
        Ok(())
    }
}

/// Whether the server process behind a connection changes from statement to statement, or two connections share one. No, if
/// that can't be detected, as where the server has no second connection to give.
async fn is_pooled(one: &mut PgConnection, options: &PgConnectOptions) -> bool {
    let ask = async {
        let mut two = options.connect().await?;
        let (mut one, mut other) = (Backend::of(one).await?, Backend::of(&mut two).await?);
        let mut pooled = one.pid == other.pid;
        for _ in 0..ROUNDS {
            pooled = pooled || other.changes().await? || one.changes().await? || one.changes_with(&mut other).await?;
            std::mem::swap(&mut one, &mut other);
        }
        two.close().await?;
        Ok::<_, sqlx::Error>(pooled)
    };
    match tokio::time::timeout(ANSWER_WAIT, ask).await {
        Ok(Ok(pooled)) => pooled,
        Ok(Err(error)) => {
            tracing::debug!(
                error = text_of(&error),
                "whether a pooler stands before PostgreSQL could not be found out"
            );
            false
        }
        Err(_) => false,
    }
}

/// The server process that has served a connection first.
struct Backend<'c> {
    conn: &'c mut PgConnection,
    pid: i32,
}

impl<'c> Backend<'c> {
    async fn of(conn: &'c mut PgConnection) -> sqlx::Result<Self> {
        let pid = backend_pid(conn, "").await?;
        Ok(Self { conn, pid })
    }

    /// Whether it is another one by now: a pooler that gives its connections in turn has gone on by one.
    async fn changes(&mut self) -> sqlx::Result<bool> {
        Ok(backend_pid(self.conn, "").await? != self.pid)
    }

    /// Whether one of the two is another one by now: a pooler that gives the connection that was used last gives this one's
    /// when its transaction has ended.
    async fn changes_with(&mut self, other: &mut Self) -> sqlx::Result<bool> {
        let begun = backend_pid(self.conn, "BEGIN READ ONLY; ").await? != self.pid;
        let meanwhile = other.changes().await?;
        let ended = backend_pid(self.conn, "COMMIT; ").await? != self.pid;
        Ok(begun || meanwhile || ended || other.changes().await?)
    }
}

/// The process that serves a connection now, after a statement.
async fn backend_pid(conn: &mut PgConnection, before: &str) -> sqlx::Result<i32> {
    query_first(conn, format!("{before}SELECT pg_backend_pid()"))
        .await?
        .try_get(0)
}

/// What the server or the operating system itself said, without what sqlx puts around it.
fn innermost(error: sqlx::Error) -> Box<dyn StdError + Send + Sync> {
    match error {
        sqlx::Error::Database(answer) => match answer.try_downcast::<PgDatabaseError>() {
            Ok(answer) => answer,
            Err(answer) => answer.into_error(),
        },
        sqlx::Error::Io(error) => Box::new(error),
        sqlx::Error::Tls(error) | sqlx::Error::Configuration(error) => error,
        error => Box::new(error),
    }
}

fn refused(options: &PgConnectOptions, error: sqlx::Error) -> ConnectError {
    let source = innermost(error);
    ConnectError::Refused {
        message: format!(
            "PostgreSQL at {} can't be used, and waiting doesn't help (correct the URL, or the server): {}",
            place(options),
            text_of(&*source)
        ),
        source,
    }
}

fn unavailable(options: &PgConnectOptions, source: Box<dyn StdError + Send + Sync>) -> ConnectError {
    ConnectError::Unavailable {
        message: format!(
            "PostgreSQL at {} can't be reached: {}",
            place(options),
            text_of(&*source)
        ),
        source,
    }
}

/// The server's address.
fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}
