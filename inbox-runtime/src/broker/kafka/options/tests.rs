//! Tests of the options: which are valid, and what the errors say and don't reveal.

use super::*;

fn options(properties: &[(&str, &str)]) -> KafkaOptions {
    let mut options = KafkaOptions::new("one");
    for (name, value) in properties {
        options.set(name, value);
    }
    options
}

fn problems(properties: &[(&str, &str)]) -> Vec<String> {
    options(properties).check().expect_err("a problem")
}

#[test]
fn a_list_of_brokers_is_read() {
    for (url, expected) in [
        ("one:9093", "one:9093"),
        ("one", "one:9092"),
        ("one:1,two:2", "one:1,two:2"),
        ("one:1, two/", "one:1,two:9092"),
        ("[::1]:9093,127.0.0.1", "[::1]:9093,127.0.0.1:9092"),
    ] {
        let options = KafkaOptions::from_url(url);
        assert_eq!(options.brokers, expected, "{url}");
        assert_eq!(options.check(), Ok(()), "{url}");
    }
}

#[test]
fn g54_a_wrong_url_says_what_to_write_and_repeats_no_secret() {
    for (url, expected) in [
        ("", "kafka://one:9092"),
        ("one:", "kafka://one:9092"),
        ("one:0", "kafka://one:9092"),
        ("one:99999", "kafka://one:9092"),
        ("one,,two", "kafka://one:9092"),
        ("one:9092/topic", "kafka://one:9092"),
        ("user:canary@one:9092", "INBOX_KAFKA_SASL_USERNAME"),
        ("user:canary?x@one:9092", "INBOX_KAFKA_SASL_USERNAME"),
        ("user:canary,x@one:9092", "INBOX_KAFKA_SASL_USERNAME"),
        ("user:canary", "kafka://one:9092"),
        ("one?sasl.password=canary", "prefix"),
        ("one?topic=x", "prefix"),
        ("one?prefix=a/b", "staging."),
    ] {
        let problems = KafkaOptions::from_url(url).check().expect_err(url).join("; ");
        assert!(problems.contains(expected), "{url}: {problems}");
        assert!(!problems.contains("canary"), "{problems}");
    }
}

#[test]
fn a_prefix_can_stand_in_the_url() {
    let options = KafkaOptions::from_url("one:1?prefix=staging.");
    assert_eq!(options.check(), Ok(()));
    assert_eq!(
        (options.brokers.as_str(), options.prefix.as_str()),
        ("one:1", "staging.")
    );
}

#[test]
fn f61_g52_what_would_break_the_guarantee_is_refused_by_name() {
    for (name, value, expected) in [
        ("bootstrap.servers", "two", "kafka://"),
        ("group.id", "mine", "group = "),
        ("enable.auto.commit", "true", "after the transaction"),
        ("enable.auto.commit", "1", "after the transaction"),
        ("auto.commit.enable", "true", "after the transaction"),
        ("auto.commit.interval.ms", "100", "after the transaction"),
        ("enable.auto.offset.store", "TRUE", "after the transaction"),
        ("offset.store.method", "none", "after the transaction"),
        ("auto.offset.reset", "latest", "start = \"new\""),
        ("isolation.level", "read_uncommitted", "aborted"),
        ("enable.partition.eof", "false", "leave it out"),
        ("enable.idempotence", "false", "leave it out"),
        ("acks", "1", "leave it out"),
        ("acks", "0", "leave it out"),
        ("request.required.acks", "1", "leave it out"),
        ("delivery.report.only.error", "true", "never return"),
        ("enable.gapless.guarantee", "true", "end the producer"),
        ("message.timeout.ms", "0", "forever"),
        ("delivery.timeout.ms", "0", "forever"),
        ("statistics.interval.ms", "0", "health"),
        ("topic.metadata.refresh.interval.ms", "-1", "never handled"),
        ("transactional.id", "x", "the database's"),
        ("api.version.request", "false", "headers"),
        ("api.version.fallback.ms", "1000", "headers"),
        ("broker.version.fallback", "0.9.0", "headers"),
        ("log_level", "7", "RUST_LOG"),
        ("test.mock.num.brokers", "3", "own tests"),
        ("error_cb", "1", "error_cb"),
        ("max.in.flight", "100", "max.in.flight"),
        ("retries", "0", "retries"),
        ("queuing.strategy", "lifo", "queuing.strategy"),
        ("session.timeout.ms", "400000", "max.poll.interval.ms"),
        ("heartbeat.interval.ms", "45000", "session.timeout.ms"),
    ] {
        let problems = problems(&[(name, value)]).join("; ");
        assert!(
            problems.contains(name) && problems.contains(expected),
            "{name}: {problems}"
        );
    }
}

#[test]
fn g52_what_is_so_anyway_may_be_said() {
    let said = [
        ("enable.auto.commit", "false"),
        ("enable.idempotence", "true"),
        ("acks", "all"),
        ("request.required.acks", "-1"),
        ("isolation.level", "read_committed"),
        ("delivery.report.only.error", "false"),
        ("group.protocol.type", "consumer"),
    ];
    assert_eq!(options(&said).check(), Ok(()));
}

#[test]
fn g80_all_values_are_checked_at_once_with_the_names_of_their_variables() {
    let mut options = KafkaOptions::new("one");
    for (variable, name, value) in [
        ("INBOX_KAFKA_SESSION_TIMEOUT_MS", "session.timeout.ms", "6s"),
        ("INBOX_KAFKA_SESION_TIMEOUT_MS", "sesion.timeout.ms", "6000"),
        ("INBOX_KAFKA_LINGER_MS", "linger.ms", "010"),
        ("INBOX_KAFKA_ACKS", "acks", "1"),
        ("INBOX_KAFKA_FETCH_MIN_BYTES", "fetch.min.bytes", "0"),
    ] {
        let given = Given {
            value: Secret(value.to_owned()),
            place: variable.to_owned(),
        };
        options.set_given(name, &given);
    }
    let problems = options.check().expect_err("problems");
    assert_eq!(problems.len(), 5, "{problems:#?}");
    for expected in [
        "INBOX_KAFKA_SESSION_TIMEOUT_MS: the Kafka property `session.timeout.ms` can't be `6s`: write it in milliseconds, as in 6000",
        "INBOX_KAFKA_SESION_TIMEOUT_MS: a Kafka property can't be used: No such configuration property: \"sesion.timeout.ms\"; \
         the nearest is `session.timeout.ms`",
        "INBOX_KAFKA_LINGER_MS: the Kafka property `linger.ms` can't be `010`: ",
        "INBOX_KAFKA_ACKS: the Kafka property `acks` can't be `1`: ",
        "INBOX_KAFKA_FETCH_MIN_BYTES: a Kafka property can't be used: ",
    ] {
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{expected}: {problems:#?}"
        );
    }
}

#[test]
fn other_properties_reach_librdkafka() {
    let options = options(&[("session.timeout.ms", "6000"), ("client.id", "mine")]);
    assert_eq!(options.check(), Ok(()));
    let config = options.consumer("billing");
    assert_eq!(config.get("session.timeout.ms"), Some("6000"));
    assert_eq!(config.get("client.id"), Some("mine"));
    assert_eq!(config.get("enable.auto.commit"), Some("false"));
    assert_eq!(options.producer().get("enable.idempotence"), Some("true"));
    let own = KafkaOptions::new("one").consumer("billing");
    let id = own.get("client.id").expect("an id");
    assert!(id.starts_with("billing@") && id.len() > "billing@".len(), "{id}");
}

/// Every property that librdkafka takes for a secret, and one that it has never heard of.
#[test]
fn g54_no_text_has_a_secret() {
    for name in [
        "sasl.password",
        "sasl.pasword",
        "sasl.username",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "security.protokoll",
    ] {
        let options = options(&[(name, "canary")]);
        assert!(!format!("{options:?}").contains("canary"), "{options:?}");
        let problems = options.check().err().unwrap_or_default().join("; ");
        assert!(!problems.contains("canary"), "{problems}");
    }
    let options = options(&[("sasl.password", "canary"), ("client.id", "shop")]);
    assert_eq!(
        options.redact("the password canary is wrong"),
        "the password [redacted] is wrong"
    );
    let shown = format!("{options:?}");
    assert!(shown.contains("shop") && shown.contains("sasl.password"), "{shown}");
}

#[cfg(not(feature = "kafka-ssl"))]
#[test]
fn g80_what_needs_openssl_names_the_feature() {
    for properties in [
        &[("security.protocol", "ssl")] as &[_],
        &[("security.protocol", "sasl_ssl")],
        &[("ssl.ca.location", "/etc/ca.pem")],
        &[
            ("security.protocol", "sasl_plaintext"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
        ],
    ] {
        let problems = problems(properties).join("; ");
        assert!(problems.contains("`kafka-ssl`"), "{problems}");
    }
    let kerberos = problems(&[("security.protocol", "sasl_plaintext")]).join("; ");
    assert!(kerberos.contains("INBOX_KAFKA_SASL_MECHANISM"), "{kerberos}");
    let plain = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "alice"),
        ("sasl.password", "secret"),
    ];
    assert_eq!(options(&plain).check(), Ok(()));
}

#[test]
fn tokens_and_mechanism_must_agree() {
    let sasl = ("security.protocol", "sasl_plaintext");
    let problems = problems(&[sasl, ("sasl.mechanism", "OAUTHBEARER")]).join("; ");
    assert!(problems.contains("oauth_token"), "{problems}");
    let mut plain = options(&[sasl, ("sasl.mechanism", "PLAIN")]);
    plain.token = Some(TokenFunction::new(|| async {
        Err::<_, std::io::Error>(std::io::Error::other("none"))
    }));
    let problems = plain.check().expect_err("a problem").join("; ");
    assert!(problems.contains("OAUTHBEARER"), "{problems}");
}
