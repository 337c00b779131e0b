//! What is read from the environment and the file, and what is said of what can't be.

use std::time::Duration;

use super::{value::nearest, *};
use crate::{backoff::Backoff, handler::HandlerMeta, store::MigrateMode};

static BILLING: HandlerMeta = HandlerMeta::new("app::orders::create_invoice", "billing", "order.created");
static REFUND: HandlerMeta = HandlerMeta::new("app::orders::refund", "billing", "order.refunded");
static SHIPPING: HandlerMeta = HandlerMeta::new("app::ship", "shipping", "order.*");

fn read(variables: &[(&str, &str)], file: &str) -> (Config, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("inbox.toml");
    std::fs::write(&path, file).expect("written");
    let mut problems = Vec::new();
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()));
    let config = Config::read(Some(&path), variables, &mut problems);
    let folder = format!("{}/", folder.path().display());
    (
        config,
        problems.iter().map(|problem| problem.replace(&folder, "")).collect(),
    )
}

fn file(text: &str) -> (Config, Vec<String>) {
    read(&[], text)
}

/// The problems of a file, with those of its handlers among these.
fn problems(text: &str) -> Vec<String> {
    let (config, mut problems) = file(text);
    config.overrides.check(&[&BILLING, &REFUND, &SHIPPING], &mut problems);
    problems
}

#[test]
fn settings_are_read_from_the_environment() {
    let (config, problems) = read(
        &[
            ("INBOX_GROUPS", "billing, shipping"),
            ("INBOX_ACK_WAIT", "1500ms"),
            ("INBOX_MIGRATE", "check"),
            ("DATABASE_URL", "sqlite://app.db"),
            ("INBOX_BROKER_URL", ""),
            ("PATH", "/bin"),
        ],
        "",
    );
    assert_eq!(problems, [""; 0]);
    assert_eq!(
        config.settings.groups.as_deref(),
        Some(&["billing".to_owned(), "shipping".to_owned()][..])
    );
    assert_eq!(config.settings.ack_wait, Some(Duration::from_millis(1500)));
    assert_eq!(config.settings.migrate, Some(MigrateMode::Check));
    assert!(config.settings.broker_url.is_none());
}

#[test]
fn what_cannot_be_read_is_a_problem_that_says_what_to_write() {
    let (_, problems) = read(
        &[
            ("INBOX_ACK_WAIT", "soon"),
            ("INBOX_LOCK_WAIT", "0s"),
            ("INBOX_MIGRATE", "yes"),
            ("INBOX_HTTP_ADDR", "localhost"),
            ("INBOX_SUBJECT_PREFIX", "staging."),
        ],
        "",
    );
    assert_eq!(problems.len(), 5);
    assert!(
        problems[0].contains("INBOX_ACK_WAIT") && problems[0].contains("30s"),
        "{}",
        problems[0]
    );
    assert!(problems[2].contains("auto, check or off"), "{}", problems[2]);
    assert!(problems[3].contains("0.0.0.0:8080"), "{}", problems[3]);
    assert!(problems[4].contains("leave it out"), "{}", problems[4]);
}

/// Each setting can be written as its example has it.
#[test]
fn every_example_of_the_reference_can_be_used() {
    let mut text: Vec<_> = settings::ROWS
        .iter()
        .map(|row| format!("{} = {}", row.setting.key.expect("a key"), row.setting.example))
        .collect();
    text.extend(setting::NATS.map(|setting| format!("{} = {}", setting.key.expect("a key"), setting.example)));
    text.push("[handlers.billing]".to_owned());
    text.extend(setting::OF_HANDLERS.map(|setting| format!("{} = {}", setting.key.expect("a key"), setting.example)));
    let (config, problems) = file(&text.join("\n"));
    assert_eq!(problems, [""; 0]);
    assert_eq!(config.settings.pool_size, Some(10));
    assert_eq!(config.settings.transaction_pooler, Some(true));
    assert_eq!(config.settings.groups.expect("groups").len(), 2);
    let changed = config.overrides.apply(&BILLING);
    assert_eq!((changed.concurrency, changed.max_attempts), (4, Some(5)));
    assert_eq!(changed.timeout, Duration::from_secs(30));
    let backoff = Backoff {
        first: Duration::from_millis(500),
        max: Duration::from_secs(60),
    };
    assert_eq!(changed.backoff, backoff);
}

#[test]
fn the_environment_goes_before_the_file() {
    let text = "ack_wait = \"7s\"\nlock_wait = \"3s\"\nsqlite_url = \"sqlite://old.db\"";
    let (config, problems) = read(&[("INBOX_ACK_WAIT", "8s"), ("DATABASE_URL", "sqlite://new.db")], text);
    assert_eq!(problems, [""; 0]);
    assert_eq!(config.settings.ack_wait, Some(Duration::from_secs(8)));
    assert_eq!(config.settings.lock_wait, Some(Duration::from_secs(3)));
    assert!(
        !config.database_urls.contains_key("INBOX_SQLITE_URL"),
        "the file's database would go before the environment's"
    );
    assert_eq!(config.database_urls[DATABASE_URL].value.0, "sqlite://new.db");
}

#[test]
fn properties_of_librdkafka_come_from_both() {
    let text = "[kafka]\n\"session.timeout.ms\" = 10_000\n\"client.id\" = \"shop\"\n\"socket.keepalive.enable\" = true";
    let (config, problems) = read(&[("INBOX_KAFKA_CLIENT_ID", "till")], text);
    assert_eq!(problems, [""; 0]);
    let properties: Vec<_> = config
        .kafka
        .iter()
        .map(|(name, given)| (name.as_str(), given.value.0.as_str(), given.place.as_str()))
        .collect();
    let expected = [
        ("client.id", "till", "INBOX_KAFKA_CLIENT_ID"),
        ("session.timeout.ms", "10000", ":2"),
        ("socket.keepalive.enable", "true", ":4"),
    ];
    assert_eq!(properties.len(), expected.len());
    for (found, (name, value, place)) in properties.into_iter().zip(expected) {
        assert_eq!((found.0, found.1), (name, value));
        assert!(found.2.ends_with(place), "{found:?}");
    }

    let (_, problems) = read(&[], "[kafka]\nsession.timeout.ms = 10_000");
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].starts_with("inbox.toml:2: ") && problems[0].contains("in quotes"),
        "{}",
        problems[0]
    );
}

#[test]
fn options_of_nats_come_from_both() {
    let text = "[nats]\ndomain = \"hub\"\npassword = \"hunter2\"\ntls_first = true";
    let (config, problems) = read(&[("INBOX_NATS_DOMAIN", "leaf"), ("INBOX_NATS_USER", "shop")], text);
    assert_eq!(problems, [""; 0]);
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    let options = config.nats.iter();
    let options: Vec<_> = options
        .map(|(name, given)| (*name, given.value.0.as_str(), given.place.rsplit('/').next()))
        .collect();
    assert_eq!(
        options,
        [
            ("domain", "leaf", Some("INBOX_NATS_DOMAIN")),
            ("password", "hunter2", Some("inbox.toml:3")),
            ("tls_first", "true", Some("inbox.toml:4")),
            ("user", "shop", Some("INBOX_NATS_USER")),
        ]
    );
}

#[test]
fn a_problem_of_the_table_of_nats_has_its_line_and_no_secret() {
    let text = "[nats]\npasword = \"hunter2\"\npassword = [\"hunter2\"]\ntls_first = \"yes\"";
    let mut found = problems(text);
    found.sort();
    assert_eq!(
        found,
        [
            "inbox.toml:2: `pasword` is not an option of [nats]; the nearest is `password`",
            "inbox.toml:3: `nats.password` is a text; write it as in `nats.password = \"secret\"`",
            "inbox.toml:4: `nats.tls_first` is a flag; write it as in `nats.tls_first = true`",
        ]
    );
    assert_eq!(
        problems("nats = \"hub\""),
        ["inbox.toml:1: `nats` is a table; write `[nats]`"]
    );
}

#[test]
fn a_problem_of_the_file_has_its_line_and_what_to_write() {
    let text = "ack_wait = \"soon\"\n\npool_size = \"10\"\nmigrate = \"yes\"\nINBOX_LOCK_WIAT = \"1s\"\ngroups = \"billing\"\n";
    let mut found = problems(text);
    found.sort();
    assert_eq!(
        found,
        [
            "inbox.toml:1: `ack_wait` (how long the broker waits for a sign of life before it delivers again): \"soon\" is \
             not a duration (expected number at 0); write \"500ms\", \"30s\" or \"5m\"",
            "inbox.toml:3: `pool_size` is a number; write it as in `pool_size = 10`",
            "inbox.toml:4: `migrate` (auto: the inbox's tables are made at the start, and checked; check: they are \
             checked; off: neither): write auto, check or off",
            "inbox.toml:5: `INBOX_LOCK_WIAT` is not a setting; the nearest is `lock_wait`",
            "inbox.toml:6: `groups` is a list; write it as in `groups = [\"billing\", \"shipping\"]`",
        ]
    );
}

#[test]
fn an_override_has_the_bounds_and_the_texts_of_the_attribute() {
    let text = "[handlers.billing]\nconcurrency = 0\ntimeout = 30\nbackoff = \"5m..1s\"\nmax_attempts = 0\nretries = 3\n\
                [handlers.shipping]\ntimeout = \"0s\"\nconcurrency = 1025";
    let mut found = problems(text);
    found.sort();
    assert_eq!(
        found,
        [
            "inbox.toml:2: `concurrency` of [handlers.\"billing\"]: not a number of messages at a time; write 1 to 1024, as in \
             `concurrency = 4`",
            "inbox.toml:3: `timeout` of [handlers.\"billing\"]: expected text in quotes, as in `timeout = \"30s\"`",
            "inbox.toml:4: `backoff` of [handlers.\"billing\"]: the back-off falls; write \"1s..5m\"",
            "inbox.toml:5: `max_attempts` of [handlers.\"billing\"]: not a number of attempts; write one from 1, as in \
             `max_attempts = 5`, or \"unlimited\"",
            "inbox.toml:6: `retries` is not a setting of a handler; the nearest is `timeout`",
            "inbox.toml:8: `timeout` of [handlers.\"shipping\"]: no handler finishes within a timeout of zero; write how long \
             one may run, as in \"30s\"",
            "inbox.toml:9: `concurrency` of [handlers.\"shipping\"]: not a number of messages at a time; write 1 to 1024, as in \
             `concurrency = 4`",
        ]
    );
}

#[test]
fn an_override_of_no_handler_names_the_nearest() {
    for (key, nearest) in [
        ("app::order::create_invoice", "app::orders::create_invoice"),
        ("biling", "billing"),
        ("billing/order.create", "billing/order.created"),
    ] {
        let found = problems(&format!("\n[handlers.\"{key}\"]\nconcurrency = 2"));
        assert_eq!(found.len(), 1, "{found:?}");
        let parts = [
            "inbox.toml:2: ",
            key,
            &format!("the nearest is [handlers.\"{nearest}\"]"),
        ];
        assert!(parts.iter().all(|part| found[0].contains(part)), "{found:?}");
    }
}

#[test]
fn what_is_said_of_a_handler_by_name_goes_before_what_is_said_of_its_group() {
    let (config, problems) = file(
        "[handlers.\"app::orders::create_invoice\"]\nconcurrency = 2\n\
         [handlers.\"billing/order.created\"]\nconcurrency = 3\nmax_attempts = \"unlimited\"\n\
         [handlers.billing]\nconcurrency = 4\nmax_attempts = 9\ntimeout = \"7s\"",
    );
    assert_eq!(problems, [""; 0]);
    let invoice = config.overrides.apply(&BILLING);
    assert_eq!((invoice.concurrency, invoice.max_attempts), (2, None));
    assert_eq!(invoice.timeout, Duration::from_secs(7));
    let refund = config.overrides.apply(&REFUND);
    assert_eq!((refund.concurrency, refund.max_attempts), (4, Some(9)));
    assert_eq!(config.overrides.apply(&SHIPPING), SHIPPING);
}

/// The nearest mistake to a secret is the quote that closes it.
#[test]
fn no_text_of_the_file_and_no_url_is_shown() {
    for text in [
        "database_url = \"postgres://user:hunter2@localhost/app\nack_wait = \"1s\"",
        "database_url = postgres://user:hunter2@localhost/app",
        "database_url = [\"hunter2\"]",
        "broker_url = \"a\"\nbroker_url = \"hunter2\"",
        "ack_wait = \"1s\" \"hunter2\"",
    ] {
        let (_, problems) = file(text);
        assert!(!problems.is_empty(), "{text}");
        assert!(
            problems.iter().all(|problem| problem.starts_with("inbox.toml:")),
            "{problems:?}"
        );
        assert!(!format!("{problems:?}").contains("hunter2"), "{problems:?}");
    }
    let (config, problems) = read(
        &[("DATABASE_URL", "postgres://user:hunter2@localhost/app")],
        "broker_url = \"nats://user:hunter2@localhost\"",
    );
    assert_eq!(problems, [""; 0]);
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let named = [("INBOX_CONFIG".to_owned(), "nowhere/inbox.toml".into())];
    let mut problems = Vec::new();
    let _ = Config::read(None, named.into_iter(), &mut problems);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("nowhere/inbox.toml") && problems[0].contains("INBOX_CONFIG"),
        "{problems:?}"
    );

    let mut problems = Vec::new();
    let _ = Config::read(None, std::iter::empty(), &mut problems);
    assert_eq!(problems, [""; 0], "`inbox.toml` may be missing");
}

#[test]
fn a_misspelt_variable_has_a_nearest_one() {
    let known = || settings::ROWS.iter().filter_map(|row| row.setting.variable);
    assert_eq!(nearest("INBOX_GROUP", known()), "INBOX_GROUPS");
    assert_eq!(nearest("INBOX_SHUTDOWN_TIMOUT", known()), "INBOX_SHUTDOWN_TIMEOUT");
}

/// The table of the documentation has the values that hold where nothing is set.
#[test]
fn the_defaults_of_the_reference_are_those_that_hold() {
    let mut config = Config::default();
    let mut read = 0;
    for row in &settings::ROWS {
        if let Some(default) = row.setting.default {
            (row.set)(&mut config, default, "the reference").expect("a value");
            read += 1;
        }
    }
    assert!(read > 6, "the defaults are read");
    let (of_reference, unset) = (config.settings.resolve(), Layer::default().resolve());
    assert_eq!(format!("{of_reference:?}"), format!("{unset:?}"));
}
