//! Who is let in.

use inbox_runtime::{Broker, BrokerError, Message, Nats};
use inbox_tests::{JetStream, eventually, servers::nats::Nats as Server};

async fn server(config: impl Into<String>) -> Server {
    let config = config.into();
    let started = tokio::task::spawn_blocking(move || Server::start_with(&config)).await;
    started.expect("it ends").expect("a NATS server")
}

async fn lets_in(url: &str) -> Result<String, BrokerError> {
    Nats::new(url)?.describe().await
}

async fn is_refused(url: &str, secret: &str) {
    let problem = lets_in(url).await.expect_err("refused");
    assert!(matches!(problem, BrokerError::Invalid(_)), "{problem}");
    let problem = problem.to_string();
    assert!(
        problem.contains("lets nobody in") && !problem.contains(secret),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_or_a_token() {
    let by_password = server("authorization { user: shop, password: \"p@ss\" }").await;
    let port = by_password.port();
    lets_in(&format!("nats://shop:p%40ss@127.0.0.1:{port}"))
        .await
        .expect("let in");
    is_refused(&format!("nats://shop:wrong-one@127.0.0.1:{port}"), "wrong-one").await;
    is_refused(&format!("nats://127.0.0.1:{port}"), "p@ss").await;

    let by_token = server("authorization { token: s3cret }").await;
    let port = by_token.port();
    lets_in(&format!("nats://s3cret@127.0.0.1:{port}"))
        .await
        .expect("let in");
    is_refused(&format!("nats://wrong-one@127.0.0.1:{port}"), "wrong-one").await;
}

/// The pair of keys that NATS' documentation shows.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const KEY: &str = "authorization { users: [{ nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 }] }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_in_a_file() {
    let server = server(KEY).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shop.nk");
    std::fs::write(&file, format!("{SEED}\n")).expect("written");
    let port = server.port();
    lets_in(&format!("nats://127.0.0.1:{port}?nkey={}", file.display()))
        .await
        .expect("let in");
    is_refused(&format!("nats://127.0.0.1:{port}"), SEED).await;
}

/// Of several servers one that is there is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_servers_is_enough() {
    let server = server("").await;
    // Nobody listens on that port; a free one might be taken by another test's server.
    let url = format!("nats://127.0.0.1:1,127.0.0.1:{}", server.port());
    JetStream::on(&server)
        .make_stream("TEST", &["order.>"], serde_json::json!({}))
        .await;
    let broker = Nats::new(&url).expect("a URL");
    broker
        .publish(Message::new("order.created", "{}"))
        .await
        .expect("published");
}

/// The certificates are of an authority of our own, and expire in a hundred years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_by_an_authority_that_is_named() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls");
    let config = format!("tls {{ cert_file: \"{folder}/server.pem\", key_file: \"{folder}/server.key\" }}");
    let server = server(config).await;
    let port = server.port();
    for scheme in ["nats", "tls"] {
        let broker = Nats::new(&format!("{scheme}://localhost:{port}?ca={folder}/ca.pem")).expect("a URL");
        // A handshake may take longer than an attempt on a busy machine.
        eventually("let in", || async {
            broker.describe().await.expect("not refused").starts_with("NATS 2.")
        })
        .await;
    }
    // The system doesn't know that authority.
    let described = lets_in(&format!("tls://localhost:{port}"))
        .await
        .expect("it is tried again");
    assert!(described.contains("not reached yet"), "{described}");
}
