//! Fixed sizes, timeouts and back-offs of the NATS broker.

use std::time::Duration;

use crate::backoff::Backoff;

/// The name of both connections in the server's connection list.
pub(super) const CLIENT_NAME: &str = concat!("inbox-runtime ", env!("CARGO_PKG_VERSION"));
/// The longest name of a durable that the server accepts, in bytes.
pub(super) const MAX_DURABLE_NAME: usize = 255;
/// The interval between keep-alive pings on a connection.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout of one attempt to connect to one server.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout of a request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How many messages of one call are published at a time without the server's confirmation.
pub(super) const MAX_UNCONFIRMED: usize = 512;
/// The size of their payloads from which on no further one is sent, in bytes.
pub(super) const MAX_UNCONFIRMED_BYTES: usize = 8 << 20;
/// The timeout of an ack, nak or progress. The server never confirms one to a consumer that was just deleted.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The `expires` of a pull request. A stop may have to wait for it.
pub(super) const PULL_EXPIRES: Duration = Duration::from_secs(1);
/// How long after it expired a pull request without a status counts as lost.
pub(super) const PULL_GRACE: Duration = Duration::from_secs(1);
/// The interval between two reads of the consumer's state: its lag, and what others changed.
pub(super) const MONITOR_INTERVAL: Duration = Duration::from_secs(5);
/// How long a pull without a wait waits for a reconnect.
pub(super) const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// The back-off between two attempts to bind a source to its consumer.
pub(super) const BIND_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(3),
};
/// The back-off before a reconnect. Never zero: a message that breaks the connection at each delivery must not cause a
/// reconnect storm.
pub(super) const RECONNECT_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(2),
};
