//! What needs OpenSSL: OAUTHBEARER tokens, unsupported mechanisms, TLS.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_runtime::{Kafka, kafka::OauthToken};
use inbox_tests::eventually;

use super::{
    authentication::{login, server, world_of},
    stop, wait_for_reason,
};

/// An unsigned JWT, which the test server accepts: of alice, from 1970 to 2100.
const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjo0MTAyNDQ0ODAwfQ.";
/// One that expired in 1970.
const EXPIRED: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjoyfQ.";

fn client() -> Kafka {
    Kafka::new(server().sasl_brokers()).property("security.protocol", "sasl_plaintext")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_tokens_come_from_a_function_and_are_renewed_before_they_expire() {
    let requested = Arc::new(AtomicUsize::new(0));
    let count = requested.clone();
    let world = world_of(move || {
        client().oauth_token(move || {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, std::io::Error>(OauthToken::expires_in(TOKEN, "alice", Duration::from_secs(5))) }
        })
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    let first = requested.load(Ordering::Relaxed);
    assert!(first >= 2, "one for the producer and one for the consumer");
    eventually("they are renewed", async || {
        requested.load(Ordering::Relaxed) >= first + 2
    })
    .await;
    world.publish("m2").await;
    eventually("m2 is settled", || world.settled("billing")).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_failing_token_function_is_the_reason_in_health() {
    let requested = Arc::new(AtomicUsize::new(0));
    let count = requested.clone();
    let world = world_of(move || {
        client().oauth_token(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    0 => Err(std::io::Error::other("the token server is down")),
                    _ => Ok(OauthToken::expires_in(TOKEN, "alice", Duration::from_secs(3600))),
                }
            }
        })
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "the token server is down").await;
    wait_for_reason(&inbox, "oauth_token").await;
    // It is called again.
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_token_that_the_broker_refuses_is_the_reason_in_health() {
    let world = world_of(|| {
        client().oauth_token(|| async {
            Ok::<_, std::io::Error>(OauthToken::expires_in(EXPIRED, "alice", Duration::from_secs(3600)))
        })
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "invalid_token").await;
    let health = format!("{:?}", inbox.health());
    assert!(!health.contains(EXPIRED), "{health}");
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_an_unsupported_mechanism_is_named_with_the_supported_ones() {
    let world = world_of(|| login(("alice", "alice-password")).property("sasl.mechanism", "SCRAM-SHA-256")).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    wait_for_reason(&inbox, "supported mechanisms: ").await;
    wait_for_reason(&inbox, "INBOX_KAFKA_SASL_MECHANISM").await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_failed_tls_handshake_is_the_reason_in_health() {
    let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls/ca.pem");
    // Without the CA certificate; TLS to a plaintext listener; plaintext to a TLS listener.
    for (brokers, protocol, expected) in [
        (server().tls_brokers(), "ssl", "INBOX_KAFKA_SSL_CA_LOCATION"),
        (server().brokers(), "ssl", "INBOX_KAFKA_SECURITY_PROTOCOL"),
        (server().tls_brokers(), "plaintext", "INBOX_KAFKA_SECURITY_PROTOCOL"),
    ] {
        let world = world_of(move || Kafka::new(brokers).property("security.protocol", protocol)).await;
        let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
        wait_for_reason(&inbox, expected).await;
        assert!(!inbox.health().ready);
        stop(inbox).await;
    }
    let world = world_of(move || {
        Kafka::new(server().tls_brokers())
            .property("security.protocol", "ssl")
            .property("ssl.ca.location", ca)
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    world.publish("m1").await;
    eventually("m1 is settled", || world.settled("billing")).await;
    stop(inbox).await;
}
