//! What needs OpenSSL: tokens for OAUTHBEARER, mechanisms that a broker doesn't have, TLS.

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
    says,
    secure::{login, server, world_of},
    stop,
};

/// A JWT without a signature, which the server of the tests takes: of alice, from 1970 to 2100.
const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjo0MTAyNDQ0ODAwfQ.";
/// One that has expired in 1970.
const OLD: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjoyfQ.";

fn client() -> Kafka {
    Kafka::new(server().sasl_brokers()).property("security.protocol", "sasl_plaintext")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_tokens_are_made_by_a_function_and_made_again_before_they_expire() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
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
    let first = made.load(Ordering::Relaxed);
    assert!(first >= 2, "one for the producer and one for the consumer");
    eventually("they are made again", async || {
        made.load(Ordering::Relaxed) >= first + 2
    })
    .await;
    world.publish("m2").await;
    eventually("m2 is settled", || world.settled("billing")).await;
    assert!(inbox.health().ready, "{:?}", inbox.health());
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_function_that_makes_no_token_is_the_reason_in_health() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let world = world_of(move || {
        client().oauth_token(move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    0 => Err(std::io::Error::other("the token server is away")),
                    _ => Ok(OauthToken::expires_in(TOKEN, "alice", Duration::from_secs(3600))),
                }
            }
        })
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    says(&inbox, "the token server is away").await;
    says(&inbox, "oauth_token").await;
    // It is asked again.
    eventually("it is ready", async || inbox.health().ready).await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_token_that_the_broker_refuses_is_the_reason_in_health() {
    let world = world_of(|| {
        client().oauth_token(|| async {
            Ok::<_, std::io::Error>(OauthToken::expires_in(OLD, "alice", Duration::from_secs(3600)))
        })
    })
    .await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    says(&inbox, "invalid_token").await;
    let health = format!("{:?}", inbox.health());
    assert!(!health.contains(OLD), "{health}");
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_a_mechanism_that_the_broker_does_not_have_is_named_with_those_that_it_has() {
    let world = world_of(|| login(("alice", "alice-password")).property("sasl.mechanism", "SCRAM-SHA-256")).await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    says(&inbox, "supported mechanisms: ").await;
    says(&inbox, "INBOX_KAFKA_SASL_MECHANISM").await;
    stop(inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g55_trouble_with_tls_is_the_reason_in_health() {
    let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls/ca.pem");
    // Without the authority, with a listener that doesn't speak it, and without it on one that does.
    for (brokers, protocol, expected) in [
        (server().tls_brokers(), "ssl", "INBOX_KAFKA_SSL_CA_LOCATION"),
        (server().brokers(), "ssl", "INBOX_KAFKA_SECURITY_PROTOCOL"),
        (server().tls_brokers(), "plaintext", "INBOX_KAFKA_SECURITY_PROTOCOL"),
    ] {
        let world = world_of(move || Kafka::new(brokers).property("security.protocol", protocol)).await;
        let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
        says(&inbox, expected).await;
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
