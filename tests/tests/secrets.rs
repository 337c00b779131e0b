//! Nothing that a program says of itself has a secret in it: a canary stands in every URL, property, variable, file of settings
//! and file of credentials, and is looked for in all that comes out: values that are shown, errors, the log, health over HTTP,
//! panics.
//!
//! Each case is a process of its own, for it is about what the environment says. The log of it has everything of our own crate,
//! down to TRACE, and of all others what is INFO and above.

use std::{path::Path, process::Stdio, time::Duration};

use futures_util::{StreamExt, stream};
use inbox_runtime::{
    BrokerError, Inbox, inbox_handler,
    sqlx::{self, SqliteConnection},
};
use inbox_tests::ask;
use tempfile::TempDir;
use tokio::process::Command;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::filter_fn, layer::SubscriberExt};

/// What nobody may ever see.
const CANARY: &str = "c4n4ry";

/// What stands in passwords and confuses whoever takes a URL apart.
const SIGNS: [&str; 8] = [",", "?", "@", "%", "#", "/", ":", "&"];

/// No server is there.
const NOBODY: &str = "127.0.0.1:9";

#[inbox_handler(group = "secrets-sqlite", subject = "order.created")]
async fn on_sqlite(tx: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT 1").execute(tx).await?;
    Ok(())
}

#[cfg(feature = "postgres")]
#[inbox_handler(group = "secrets-postgres", subject = "order.created")]
async fn on_postgres(tx: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT 1").execute(tx).await?;
    Ok(())
}

/// One program: what it finds in its environment and its files.
#[derive(Clone, Debug, Default)]
struct Case {
    name: String,
    variables: Vec<(String, String)>,
    /// `inbox.toml`.
    settings: String,
}

impl Case {
    fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::default()
            .named(name)
            .variable("INBOX_BROKER_URL", "embedded:memory")
    }

    fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.retain(|(other, _)| other != name);
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    fn settings(mut self, text: impl Into<String>) -> Self {
        self.settings = text.into();
        self
    }

    /// Everything that the process says.
    async fn said(&self, folder: &Path) -> String {
        std::fs::write(folder.join("inbox.toml"), &self.settings).expect("written");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "child_says_everything", "--ignored", "--nocapture"])
            .current_dir(folder)
            .env_clear()
            .env("SECRETS_TEST_CASE", &self.name)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output());
        let output = output.await.expect("it ends by itself").expect("it runs");
        format!(
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }
}

/// Passwords with every sign, as somebody writes them who forgets to encode them, and encoded.
fn passwords() -> Vec<(String, String)> {
    let mut passwords = vec![("plain".to_owned(), CANARY.to_owned())];
    for sign in SIGNS {
        let encoded = format!("%{:02X}", sign.as_bytes()[0]);
        // A number in front passes for a port.
        for front in ["", "12"] {
            passwords.push((format!("{front}{sign}"), format!("{front}{CANARY}{sign}{CANARY}")));
        }
        passwords.push((format!("12{sign}…"), format!("12{sign}{CANARY}")));
        passwords.push((encoded.clone(), format!("{CANARY}{encoded}{CANARY}")));
    }
    passwords
}

/// URLs with the password where it belongs, and with a secret in a parameter that there isn't.
fn urls(scheme: &str) -> Vec<(String, String)> {
    let mut urls: Vec<_> = passwords()
        .into_iter()
        .map(|(name, password)| (name, format!("{scheme}://user:{password}@{NOBODY}/app")))
        .collect();
    urls.extend([
        ("token".to_owned(), format!("{scheme}://{CANARY}@{NOBODY}/app")),
        (
            "parameter".to_owned(),
            format!("{scheme}://{NOBODY}/app?pasword={CANARY}"),
        ),
        (
            "two".to_owned(),
            format!("{scheme}://{NOBODY}/app?password={CANARY}&x={CANARY}"),
        ),
        (
            "second host".to_owned(),
            format!("{scheme}://{NOBODY},user:{CANARY}@{NOBODY}/app"),
        ),
        ("no scheme".to_owned(), format!("user:{CANARY}@{NOBODY}/app")),
        ("only a secret".to_owned(), CANARY.to_owned()),
        (
            "another scheme".to_owned(),
            format!("amqp://user:{CANARY}@{NOBODY}/app"),
        ),
    ]);
    urls
}

/// A case for each value of a variable, and, where that has a key, for the same in the file.
fn each(variable: &str, values: Vec<(String, String)>, base: impl Fn(Case) -> Case) -> Vec<Case> {
    let key = match variable {
        "INBOX_BROKER_URL" => Some("broker_url"),
        "DATABASE_URL" => Some("database_url"),
        _ => None,
    };
    let case = |(name, value): (String, String)| {
        let case = base(Case::new(format!("{variable} {name}")));
        // The signs are read by the same code, wherever they were found.
        let in_file = key.filter(|_| name.len() > 3).map(|key| {
            let mut case = case.clone().named(format!("inbox.toml {key} {name}"));
            case.variables.retain(|(other, _)| other != variable);
            case.settings(format!("{key} = '{value}'\n"))
        });
        std::iter::once(case.variable(variable, value)).chain(in_file)
    };
    values.into_iter().flat_map(case).collect()
}

/// A program whose broker is what the case is about.
fn of_a_broker(case: Case) -> Case {
    case.variable("DATABASE_URL", "sqlite:app.db?mode=rwc")
        .variable("INBOX_GROUPS", "secrets-sqlite")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_secret_of_the_embedded_broker_is_said() {
    let mut cases = each("INBOX_BROKER_URL", urls("embedded"), of_a_broker);
    let keep = vec![("keep".to_owned(), format!("embedded:broker.db?keep={CANARY}"))];
    cases.extend(each("INBOX_BROKER_URL", keep, of_a_broker));
    nothing_is_said(cases).await;
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_secret_of_nats_is_said() {
    let mut cases = each("INBOX_BROKER_URL", urls("nats"), of_a_broker);
    for parameter in ["credentials", "nkey"] {
        let url = format!("nats://{NOBODY}?{parameter}=secret.creds");
        cases.extend(each("INBOX_BROKER_URL", vec![(parameter.to_owned(), url)], of_a_broker));
    }
    let nats = |case: Case| of_a_broker(case).variable("INBOX_BROKER_URL", format!("nats://{NOBODY}"));
    for option in ["user", "password", "token", "passwrd"] {
        let variable = format!("INBOX_NATS_{}", option.to_uppercase());
        cases.extend(each(&variable, vec![(String::new(), CANARY.to_owned())], nats));
        let text = format!("[nats]\n{option} = '{CANARY}'\n");
        cases.push(nats(Case::new(format!("inbox.toml {option}"))).settings(text));
    }
    nothing_is_said(cases).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_secret_of_kafka_is_said() {
    let mut cases = each("INBOX_BROKER_URL", urls("kafka"), of_a_broker);
    let kafka = |case: Case| of_a_broker(case).variable("INBOX_BROKER_URL", format!("kafka://{NOBODY}"));
    for property in [
        "SASL_PASSWORD",
        "SSL_KEY_PASSWORD",
        "SSL_KEY_PEM",
        "SASL_OAUTHBEARER_CONFIG",
        "SASL_OAUTHBEARER_CLIENT_SECRET",
        // Known to nobody.
        "SASL_PASSWRD",
    ] {
        let variable = format!("INBOX_KAFKA_{property}");
        cases.extend(each(&variable, vec![(String::new(), CANARY.to_owned())], kafka));
        let property = property.to_lowercase().replace('_', ".");
        cases.push(
            kafka(Case::new(format!("inbox.toml {property}")))
                .settings(format!("[kafka]\n\"{property}\" = '{CANARY}'\n")),
        );
    }
    nothing_is_said(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_secret_of_sqlite_is_said() {
    let base = |case: Case| case.variable("INBOX_GROUPS", "secrets-sqlite");
    let mut cases = each("DATABASE_URL", urls("sqlite"), base);
    // A bare word is the name of a file there, which is shown.
    let urls = urls("sqlite").into_iter().filter(|(name, _)| name != "only a secret");
    cases.extend(each("INBOX_SQLITE_URL", urls.collect(), base));
    nothing_is_said(cases).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_secret_of_postgres_is_said() {
    let base = |case: Case| case.variable("INBOX_GROUPS", "secrets-postgres");
    let mut cases = each("DATABASE_URL", urls("postgres"), base);
    cases.extend(each("INBOX_POSTGRES_URL", urls("postgresql"), base));
    nothing_is_said(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g54_no_line_of_a_file_and_no_unknown_variable_is_repeated() {
    let mut cases = Vec::new();
    // A variable that there isn't, and files that can't be read as settings.
    cases.push(Case::new("an unknown variable").variable("INBOX_BROKER_PASSWORD", CANARY));
    for text in [
        format!("broker_url = \"{CANARY}"),
        format!("broker_url = {CANARY}"),
        format!("broker_url = ['{CANARY}']"),
        CANARY.to_owned(),
        format!("unknown = '{CANARY}'"),
        format!("[kafka]\n\"sasl.password\" = ['{CANARY}']"),
        format!("[kafka]\nsasl.password = '{CANARY}'"),
    ] {
        cases.push(Case::new(format!("inbox.toml {}", text.replace(CANARY, "…"))).settings(text));
    }
    nothing_is_said(cases).await;
}

/// Runs every case and looks for the canary.
async fn nothing_is_said(cases: Vec<Case>) {
    let said = stream::iter(cases).map(async |case| {
        let folder: TempDir = tempfile::tempdir().expect("a folder");
        let credentials =
            format!("-----BEGIN NATS USER JWT-----\n{CANARY}\n------END NATS USER JWT------\nSU{CANARY}\n");
        std::fs::write(folder.path().join("secret.creds"), credentials).expect("written");
        let said = case.said(folder.path()).await;
        (case, said)
    });
    let all: Vec<_> = said.buffer_unordered(4).collect().await;
    let mut leaks = Vec::new();
    for (case, said) in all {
        assert!(said.contains("said: builder"), "it ran: {}: {said}", case.name);
        let lines = said.lines().filter(|line| line.to_lowercase().contains(CANARY));
        leaks.extend(lines.map(|line| format!("{}: {line}", case.name)));
    }
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n"));
}

/// Brokers that are made in code, shown as values, and their errors.
#[test]
fn g54_a_broker_shows_no_secret() {
    let shown = |what: &str, text: String| assert!(!text.contains(CANARY), "{what}: {text}");
    shown("embedded", format!("{:?}", inbox_runtime::Embedded::file("broker.db")));
    #[cfg(feature = "nats")]
    for (name, url) in urls("nats") {
        match inbox_runtime::Nats::new(&url) {
            Ok(broker) => shown(&name, format!("{broker:?} {broker:#?}")),
            Err(error) => shown(&name, error_texts(&error)),
        }
    }
    #[cfg(feature = "kafka")]
    {
        let kafka = inbox_runtime::Kafka::new(NOBODY)
            .property("sasl.password", CANARY)
            .property("ssl.key.password", CANARY)
            .property("sasl.mechanism", "PLAIN");
        shown("kafka", format!("{kafka:?} {kafka:#?}"));
        let kafka = inbox_runtime::Kafka::new(format!("user:{CANARY}@{NOBODY}"));
        shown("kafka with a user", format!("{kafka:?} {kafka:#?}"));
    }
    let error = BrokerError::Invalid("nothing".to_owned());
    shown("an error", error_texts(&error));
}

fn error_texts(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| format!("{error} {error:?} {error:#?}\n")).collect()
}

/// The program of each case: says all that there is to be said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of the tests above"]
async fn child_says_everything() {
    if std::env::var_os("SECRETS_TEST_CASE").is_none() {
        return;
    }
    let wanted = filter_fn(|meta| meta.target().starts_with("inbox_runtime") || *meta.level() <= LevelFilter::INFO);
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .with_filter(wanted);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log)).expect("no other subscriber");

    let builder = Inbox::builder()
        .http_addr(([127, 0, 0, 1], 0))
        .shutdown_timeout(Duration::from_secs(1));
    println!("said: builder {builder:?} {builder:#?}");
    let watch = builder.health_handle();
    let inbox = match tokio::time::timeout(Duration::from_secs(3), builder.spawn()).await {
        Err(_) => {
            println!("said: it is still starting {watch:?} {:?}", watch.health());
            return;
        }
        Ok(Err(error)) => {
            println!("said: error {}", error_texts(&error));
            return;
        }
        Ok(Ok(inbox)) => inbox,
    };
    println!("said: inbox {inbox:?} {inbox:#?}");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    println!("said: health {:?} {:#?}", inbox.health(), watch);
    if let Some(addr) = inbox.http_addr() {
        for path in ["/healthz", "/readyz", "/metrics"] {
            println!("said: {path} {:?}", ask(addr, path).await);
        }
    }
    inbox.stop();
    match tokio::time::timeout(Duration::from_secs(20), inbox.join()).await {
        Ok(Ok(report)) => println!("said: report {report} {report:?}"),
        Ok(Err(error)) => println!("said: error {}", error_texts(&error)),
        Err(_) => println!("said: it doesn't stop"),
    }
}
