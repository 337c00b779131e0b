//! Connections by TLS, whose certificate is checked.

use std::{fs, path::Path};

use inbox_runtime::{
    Inbox, Outcome,
    sqlx::{self, Connection, PgConnection},
};
use inbox_tests::{PostgresDatabase, TestBroker, TestDatabase, next, servers::postgres};
use tempfile::TempDir;

use crate::world_on;

/// A certificate for this machine, signed by itself, in `tls.crt` and `tls.key`, readable to the server.
fn certificate() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    fs::write(folder.path().join("tls.crt"), made.cert.pem()).expect("written");
    fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem()).expect("written");
    postgres::give(folder.path()).expect("the server's own");
    folder
}

fn verified(url: &str, root: &Path) -> String {
    let plain = url.split('?').next().unwrap_or(url);
    let root = root.join("tls.crt");
    format!("{plain}?sslmode=verify-full&sslrootcert={}", root.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_may_ask_for_tls() {
    let (ours, other) = (certificate(), certificate());
    let file = |name: &str| ours.path().join(name).display().to_string();
    let (cert, key) = (
        format!("ssl_cert_file={}", file("tls.crt")),
        format!("ssl_key_file={}", file("tls.key")),
    );
    let Some(server) = postgres::own(&["ssl=on", &cert, &key]) else {
        return;
    };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    let url = verified(&world.database.url(), ours.path());

    let mut conn = PgConnection::connect(&url).await.expect("a connection");
    let encrypted: bool = sqlx::query_scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        .fetch_one(&mut conn)
        .await
        .expect("a row");
    assert!(encrypted);

    world.publish("x").await;
    let pool = sqlx::PgPool::connect(&url).await.expect("a pool");
    let mut inbox = world.builder(&["billing"]).store(pool).build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "x").await;

    // A server that can't prove who it is isn't one.
    let stranger = sqlx::PgPool::connect_lazy(&verified(&world.database.url(), other.path())).expect("a URL");
    let refused = Inbox::builder()
        .store(stranger)
        .broker(world.broker.connect())
        .state(world.probe.clone())
        .groups(["billing"])
        .select(|meta| meta.name.contains("::postgres::"))
        .build()
        .await
        .expect_err("another certificate");
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&refused);
    while let Some(error) = cause {
        text.push_str(&format!("{error}; "));
        cause = error.source();
    }
    assert!(text.contains("certificate"), "{text}");
}
