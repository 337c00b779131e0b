//! The first contact with a server: whether it answers, whether waiting helps where it doesn't, and whether a pooler
//! stands before it.

use std::{error::Error as StdError, sync::atomic::Ordering, time::Duration};

use sqlx::{
    ConnectOptions, Connection, PgConnection,
    postgres::{PgConnectOptions, PgDatabaseError},
};

use super::{PostgresStore, statements::first};
use crate::{error_chain::text_of, store::ConnectError};

/// How long a server may take to answer a first connection.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// How often two connections are asked who serves them.
const ROUNDS: usize = 4;

impl PostgresStore {
    /// Makes a connection beside the pool: a pool tries for its whole `acquire_timeout` and doesn't tell the cause.
    pub(super) async fn reach(&self) -> Result<(), ConnectError> {
        let options = self.pool.connect_options();
        if self.pool.is_closed() {
            return Err(refused(&options, sqlx::Error::PoolClosed));
        }
        let connected = tokio::time::timeout(ANSWER, options.connect()).await;
        let mut conn = match connected {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) if passes(&error) => return Err(unreachable(&options, own(error))),
            Ok(Err(error)) => return Err(refused(&options, error)),
            Err(_) => return Err(unreachable(&options, format!("no answer within {ANSWER:?}").into())),
        };
        if !self.pooled() && is_pooled(&mut conn, &options).await {
            tracing::warn!(
                server = place(&options),
                "a transaction-pooling proxy stands before PostgreSQL: its connections are used in its way from now on; \
                 set INBOX_TRANSACTION_POOLER=true, or add `.transaction_pooler()`, to say so yourself"
            );
            self.shared.pooler.store(true, Ordering::Relaxed);
            self.shared.plain.store(true, Ordering::Relaxed);
        }
        let _ = tokio::time::timeout(ANSWER, conn.close()).await;
        Ok(())
    }
}

/// Whether two connections at a time, or one from statement to statement, are served by changing backends. What can't be
/// asked, as where the server has no second connection to give, counts as no.
async fn is_pooled(one: &mut PgConnection, options: &PgConnectOptions) -> bool {
    let ask = async {
        let mut two = options.connect().await?;
        let (mut first_of_one, mut pooled) = (None, false);
        for _ in 0..ROUNDS {
            let (pid_of_one, pid_of_two) = (backend(one).await?, backend(&mut two).await?);
            pooled |= pid_of_one == pid_of_two || *first_of_one.get_or_insert(pid_of_one) != pid_of_one;
        }
        two.close().await?;
        Ok::<_, sqlx::Error>(pooled)
    };
    match tokio::time::timeout(ANSWER, ask).await {
        Ok(Ok(pooled)) => pooled,
        Ok(Err(error)) => {
            tracing::debug!(
                error = text_of(&error),
                "whether a pooler stands before PostgreSQL is not known"
            );
            false
        }
        Err(_) => false,
    }
}

async fn backend(conn: &mut PgConnection) -> sqlx::Result<i32> {
    use sqlx::Row;
    first(conn, "SELECT pg_backend_pid()".to_owned()).await?.try_get(0)
}

/// Whether an error at the start may pass by itself: by its SQLSTATE, never by its text.
pub(super) fn passes(error: &sqlx::Error) -> bool {
    match error {
        // A certificate that isn't trusted, a server without TLS, options that exclude one another.
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolClosed => false,
        // What rustls says of a certificate.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::InvalidData,
        sqlx::Error::Database(answer) => match answer.code().as_deref().and_then(|code| code.get(..2)) {
            // Feature not supported, wrong authorization, unknown database or schema, a wrong or forbidden statement, a
            // program's own error, a failure of the same data each time.
            Some("0A" | "22" | "23" | "28" | "3D" | "3F" | "42" | "P0") => false,
            _ => true,
        },
        _ => true,
    }
}

/// What the server or the operating system itself said, without what sqlx puts around it.
fn own(error: sqlx::Error) -> Box<dyn StdError + Send + Sync> {
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
    let source = own(error);
    ConnectError::Refused {
        message: format!(
            "PostgreSQL at {} can't be used, and waiting doesn't help (correct the URL, or the server): {}",
            place(options),
            text_of(&*source)
        ),
        source,
    }
}

fn unreachable(options: &PgConnectOptions, source: Box<dyn StdError + Send + Sync>) -> ConnectError {
    ConnectError::Unavailable {
        message: format!(
            "PostgreSQL at {} can't be reached: {}",
            place(options),
            text_of(&*source)
        ),
        source,
    }
}

/// Where the server is.
fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn g63_what_may_pass_is_told_from_what_stays() {
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
            io::ErrorKind::UnexpectedEof,
            // No such host (yet).
            io::ErrorKind::Other,
            // No such socket (yet).
            io::ErrorKind::NotFound,
        ] {
            assert!(passes(&sqlx::Error::Io(kind.into())), "{kind}");
        }
        assert!(passes(&sqlx::Error::PoolTimedOut));
        for error in [
            sqlx::Error::Tls("server does not support TLS".into()),
            sqlx::Error::Configuration("no".into()),
            sqlx::Error::Io(io::ErrorKind::InvalidData.into()),
            sqlx::Error::PoolClosed,
        ] {
            assert!(!passes(&error), "{error}");
        }
    }
}
