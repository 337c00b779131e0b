//! Authentication: passwords, tokens, nkeys, credentials, TLS, and their rotation.

use std::{fs, path::Path};

use inbox_runtime::{Broker, BrokerError, Message, Nats};
use inbox_tests::{JetStream, NatsJetStream, eventually, servers::nats::Nats as Server};
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer};

use super::{effects, publish, ready, run_on, stop, world_of};

async fn server(config: impl Into<String>) -> Server {
    let config = config.into();
    let started = tokio::task::spawn_blocking(move || Server::start_with(&config)).await;
    started.expect("it ends").expect("a NATS server")
}

async fn describe(url: &str) -> Result<String, BrokerError> {
    Nats::new(url)?.describe().await
}

async fn assert_refused(url: &str, secret: &str) {
    let problem = describe(url).await.expect_err("refused");
    assert!(matches!(problem, BrokerError::Invalid(_)), "{problem}");
    let problem = problem.to_string();
    assert!(
        problem.contains("rejects these credentials") && !problem.contains(secret),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_or_a_token_authenticates() {
    let by_password = server("authorization { user: shop, password: \"p@ss\" }").await;
    let port = by_password.port();
    describe(&format!("nats://shop:p%40ss@127.0.0.1:{port}"))
        .await
        .expect("let in");
    assert_refused(&format!("nats://shop:wrong-one@127.0.0.1:{port}"), "wrong-one").await;
    assert_refused(&format!("nats://127.0.0.1:{port}"), "p@ss").await;

    let by_token = server("authorization { token: s3cret }").await;
    let port = by_token.port();
    describe(&format!("nats://s3cret@127.0.0.1:{port}"))
        .await
        .expect("let in");
    assert_refused(&format!("nats://wrong-one@127.0.0.1:{port}"), "wrong-one").await;
}

/// The nkey of NATS' documentation.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const KEY: &str = "authorization { users: [{ nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 }] }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nkey_seed_in_a_file_authenticates() {
    let server = server(KEY).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shop.nk");
    fs::write(&file, format!("{SEED}\n")).expect("written");
    let port = server.port();
    describe(&format!("nats://127.0.0.1:{port}?nkey={}", file.display()))
        .await
        .expect("let in");
    assert_refused(&format!("nats://127.0.0.1:{port}"), SEED).await;
}

/// The other ones are down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_servers_is_enough() {
    let server = server("").await;
    // Nothing listens on port 1; a free one might be used by another test's server.
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

/// The certificates are signed by a CA of the tests and expire in a hundred years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_custom_ca() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls");
    let config = format!("tls {{ cert_file: \"{folder}/server.pem\", key_file: \"{folder}/server.key\" }}");
    let server = server(config).await;
    let port = server.port();
    for scheme in ["nats", "tls"] {
        let broker = Nats::new(&format!("{scheme}://localhost:{port}?ca={folder}/ca.pem")).expect("a URL");
        // On a busy machine a handshake may take longer than the connect timeout.
        eventually("let in", || async {
            broker.describe().await.expect("not refused").starts_with("NATS 2.")
        })
        .await;
    }
    // The system doesn't trust that CA.
    let described = describe(&format!("tls://localhost:{port}"))
        .await
        .expect("it is tried again");
    assert!(described.contains("not reached yet"), "{described}");
}

/// A new nkey: its seed, and the server's configuration for it.
fn new_key() -> (String, String) {
    let key = KeyPair::new_user();
    let config = format!(
        "authorization {{ users: [{{ user: admin, password: admin }}, {{ nkey: {} }}] }}",
        key.public_key()
    );
    (key.seed().expect("a seed"), config)
}

/// The server accepts another key; the program reads it from the file at its next connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g35_a_rotated_key_is_used() {
    let (seed, config) = new_key();
    let server = server(config).await;
    let world = world_of(NatsJetStream::of(JetStream::on(&server).as_user("admin")).await).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("shop.nk");
    fs::write(&file, seed).expect("written");
    let broker = Nats::new(&format!("nats://127.0.0.1:{}?nkey={}", server.port(), file.display())).expect("a URL");
    publish(&world, 1, 1).await;
    let inbox = run_on(&world, broker).await;
    effects(&world, 1).await;
    let (seed, config) = new_key();
    server.stop();
    server.configure(&config);
    tokio::task::block_in_place(|| server.resume()).expect("the server");
    publish(&world, 2, 2).await;
    eventually("it says why", || async {
        let reasons = inbox.health().reasons;
        reasons
            .iter()
            .any(|reason| reason.to_lowercase().contains("authorization violation"))
    })
    .await;
    fs::write(&file, seed).expect("written");
    effects(&world, 2).await;
    ready(&inbox, true).await;
    stop(inbox).await;
}

/// A certificate authority.
fn authority(folder: &Path, name: &str) -> Issuer<'static, rcgen::KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
    Issuer::new(params, key)
}

fn sign(folder: &Path, name: &str, issuer: &Issuer<'_, rcgen::KeyPair>) {
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
}

/// Wrong ones at first; each connect reads the files again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g35_rotated_certificates_are_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let (right, wrong) = (authority(path, "right"), authority(path, "wrong"));
    sign(path, "server", &right);
    sign(path, "client", &wrong);
    fs::copy(path.join("wrong.pem"), path.join("ca.pem")).expect("copied");
    let at = |name: &str| path.join(name).display().to_string();
    let config = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        at("server.pem"),
        at("server.key"),
        at("right.pem")
    );
    let server = server(config).await;
    let port = server.port();
    let (ca, cert, key) = (at("ca.pem"), at("client.pem"), at("client.key"));
    let broker = Nats::new(&format!("tls://localhost:{port}?ca={ca}&cert={cert}&key={key}")).expect("a URL");
    let reached = async || broker.describe().await.expect("not refused").starts_with("NATS 2.");
    assert!(!reached().await, "the server isn't trusted");
    fs::copy(path.join("right.pem"), &ca).expect("copied");
    let subscription = || inbox_runtime::Subscription::new("billing", "order.created");
    let source = broker
        .subscribe(vec![subscription()])
        .await
        .expect("it is waited for")
        .remove(0);
    assert!(
        !inbox_runtime::Source::status(&source).reasons().is_empty(),
        "the client isn't trusted"
    );
    sign(path, "client", &right);
    eventually("both are trusted", reached).await;
}
