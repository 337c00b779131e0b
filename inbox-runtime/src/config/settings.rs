//! The settings of the whole program that have one value: their names, what they mean, and how their values are read.

use std::{net::SocketAddr, time::Duration};

use inbox_rules::{limits, subject_rules};

use super::{
    setting::{CONFIG, KAFKA, Kind, NATS, OF_HANDLERS, Setting},
    value::{Given, Secret},
    values::{Config, DATABASE_URL},
};
use crate::{outbox_mode::OutboxMode, store::MigrateMode};

/// Takes a value, which is neither empty nor padded; the error says what to write instead.
type Set = fn(&mut Config, &str, &str) -> Result<(), String>;

/// A setting of the whole program, with what takes its value.
pub(super) struct Row {
    pub(super) setting: Setting,
    /// The arguments are the value and where it was found.
    pub(super) set: Set,
}

const fn row(
    variable: &'static str,
    key: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    example: &'static str,
    meaning: &'static str,
    set: Set,
) -> Row {
    let setting = Setting {
        variable: Some(variable),
        key: Some(key),
        kind,
        default,
        example,
        meaning,
    };
    Row { setting, set }
}

/// Every setting of the whole program that has one value.
#[rustfmt::skip]
pub(super) const ROWS: [Row; 18] = [
    row(DATABASE_URL, "database_url", Kind::Url, None, "\"sqlite://app.db\"",
        "the database of the handlers, of whatever kind its scheme names",
        |config, value, place| database_url(config, DATABASE_URL, value, place)),
    row("INBOX_SQLITE_URL", "sqlite_url", Kind::Url, None, "\"sqlite://app.db\"",
        "the SQLite database, in a program that also has handlers for another one",
        |config, value, place| database_url(config, "INBOX_SQLITE_URL", value, place)),
    row("INBOX_POSTGRES_URL", "postgres_url", Kind::Url, None, "\"postgres://localhost/app\"",
        "the PostgreSQL database, in a program that also has handlers for another one",
        |config, value, place| database_url(config, "INBOX_POSTGRES_URL", value, place)),
    row("INBOX_BROKER_URL", "broker_url", Kind::Url, None, "\"embedded:broker.db\"",
        "the broker",
        |config, value, place| {
            config.settings.broker_url = Some(secret(value, place));
            Ok(())
        }),
    row("INBOX_GROUPS", "groups", Kind::List, None, "[\"billing\", \"shipping\"]",
        "the consumer groups to run; all that are linked if unset",
        |config, value, _| {
            config.settings.groups = Some(value.split(',').map(|group| group.trim().to_owned()).collect());
            Ok(())
        }),
    row("INBOX_SUBJECT_PREFIX", "subject_prefix", Kind::Text, None, "\"staging\"",
        "stands before the subject of every handler, with a dot between them",
        |config, value, place| {
            config.settings.subject_prefix = Some(Given { value: prefix(value)?, place: place.to_owned() });
            Ok(())
        }),
    row("INBOX_MIGRATE", "migrate", Kind::Text, Some("auto"), "\"check\"",
        "auto: the inbox's tables are made at the start, and checked; check: they are checked; off: neither",
        |config, value, _| {
            config.settings.migrate = Some(match value {
                "auto" => MigrateMode::Auto,
                "check" => MigrateMode::Check,
                "off" => MigrateMode::Off,
                _ => return Err("write auto, check or off".to_owned()),
            });
            Ok(())
        }),
    row("INBOX_ACK_WAIT", "ack_wait", Kind::Duration, Some("30s"), "\"30s\"",
        "how long the broker waits for a sign of life before it delivers again",
        |config, value, _| duration(&mut config.settings.ack_wait, value)),
    row("INBOX_LOCK_WAIT", "lock_wait", Kind::Duration, Some("1s"), "\"1s\"",
        "how long a claim waits for another transaction",
        |config, value, _| duration(&mut config.settings.lock_wait, value)),
    row("INBOX_COMMIT_TIMEOUT", "commit_timeout", Kind::Duration, Some("15s"), "\"15s\"",
        "how long the end of a transaction may take before its connection is closed",
        |config, value, _| duration(&mut config.settings.commit_timeout, value)),
    row("INBOX_STALL_AFTER", "stall_after", Kind::Duration, Some("1m"), "\"1m\"",
        "how long beyond its timeout a handler may make no progress before health says that it stalls",
        |config, value, _| duration(&mut config.settings.stall_after, value)),
    row("INBOX_POOL_SIZE", "pool_size", Kind::Number, Some("10"), "10",
        "how many connections the runtime's own pool may have, from 1",
        |config, value, _| {
            let size = value.parse().ok().filter(|size| *size > 0);
            config.settings.pool_size = Some(size.ok_or("write a number from 1 on")?);
            Ok(())
        }),
    row("INBOX_TRANSACTION_POOLER", "transaction_pooler", Kind::Flag, Some("false"), "true",
        "whether a transaction-pooling proxy stands before PostgreSQL",
        |config, value, _| {
            config.settings.transaction_pooler = Some(value.parse().map_err(|_| "write true or false")?);
            Ok(())
        }),
    row("INBOX_SHUTDOWN_TIMEOUT", "shutdown_timeout", Kind::Duration, Some("25s"), "\"25s\"",
        "how long running handlers may take to finish when the program is told to stop",
        |config, value, _| duration(&mut config.settings.shutdown_timeout, value)),
    row("INBOX_OUTBOX", "outbox", Kind::Text, Some("both"), "\"write\"",
        "both: handlers publish, and the outbox is relayed to the broker; write: they publish, another program relays; relay: it is \
         relayed, with or without handlers; off: neither",
        |config, value, _| {
            config.settings.outbox = Some(match value {
                "both" => OutboxMode::Both,
                "write" => OutboxMode::Write,
                "relay" => OutboxMode::Relay,
                "off" => OutboxMode::Off,
                _ => return Err("write both, write, relay or off".to_owned()),
            });
            Ok(())
        }),
    row("INBOX_OUTBOX_MAX_AGE", "outbox_max_age", Kind::Duration, Some("1h"), "\"1h\"",
        "how old the oldest message of the outbox may be before health has a warning that nobody relays it",
        |config, value, _| duration(&mut config.settings.outbox_max_age, value)),
    row("INBOX_OUTBOX_MAX_PENDING", "outbox_max_pending", Kind::Number, Some("1000000"), "100000",
        "how many messages may wait in the outbox, from 1, before handlers that publish take no further messages",
        |config, value, _| {
            let max = value.parse().ok().filter(|max| *max > 0);
            config.settings.outbox_max_pending = Some(max.ok_or("write a number from 1 on")?);
            Ok(())
        }),
    row("INBOX_HTTP_ADDR", "http_addr", Kind::Text, None, "\"0.0.0.0:8080\"",
        "where health and metrics are served (feature `http`); nowhere if unset",
        |config, value, place| {
            config.settings.http_addr = Some(Given { value: http_addr(value)?, place: place.to_owned() });
            Ok(())
        }),
];

/// Every setting: those of the whole program, then what `inbox.toml` can say of single handlers.
///
/// ```
/// let settings = inbox_runtime::config::reference();
/// let ack_wait = settings.iter().find(|setting| setting.key == Some("ack_wait")).expect("a setting");
/// assert_eq!(ack_wait.variable, Some("INBOX_ACK_WAIT"));
/// assert_eq!(ack_wait.default, Some("30s"));
/// ```
#[must_use]
pub fn reference() -> Vec<Setting> {
    let whole = std::iter::once(CONFIG).chain(ROWS.iter().map(|row| row.setting));
    whole.chain(NATS).chain([KAFKA]).chain(OF_HANDLERS).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "of the shape of the other setters")]
fn database_url(config: &mut Config, variable: &'static str, value: &str, place: &str) -> Result<(), String> {
    config.database_urls.insert(variable, secret(value, place));
    Ok(())
}

fn secret(value: &str, place: &str) -> Given<Secret> {
    Given {
        value: Secret(value.to_owned()),
        place: place.to_owned(),
    }
}

fn duration(field: &mut Option<Duration>, value: &str) -> Result<(), String> {
    match limits::duration(value)? {
        0 => Err("it must be longer than zero".to_owned()),
        millis => {
            *field = Some(Duration::from_millis(millis));
            Ok(())
        }
    }
}

/// Checks what stands before every subject, with a dot behind it.
pub(crate) fn prefix(value: &str) -> Result<String, String> {
    if value.ends_with('.') {
        return Err(format!(
            "\"{}\" ends with a dot; leave it out, it is added",
            value.escape_debug()
        ));
    }
    subject_rules::check_publish_subject(value)
        .map(|()| value.to_owned())
        .map_err(|problem| format!("{problem}; write one or more tokens, as in \"staging\""))
}

fn http_addr(value: &str) -> Result<SocketAddr, String> {
    value.parse().map_err(|_| {
        let value = value.escape_debug();
        format!("\"{value}\" is not an address; write an IP address and a port, as in 0.0.0.0:8080 or [::]:8080")
    })
}
