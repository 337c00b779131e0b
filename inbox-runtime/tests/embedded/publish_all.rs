//! Many messages that are published at once.

use super::*;

fn numbered(number: usize) -> Message {
    Message::new("a", number.to_string())
}

#[tokio::test]
async fn messages_are_stored_in_their_order_and_wrong_ones_are_refused_by_themselves() {
    let (_dir, path) = file();
    for broker in [Embedded::memory(), Embedded::file(&path)] {
        assert!(Broker::publish_all(&broker, Vec::new()).await.is_empty());
        let mut messages: Vec<_> = (0..100).map(numbered).collect();
        messages[40].subject = "a.*".to_owned();
        messages[99].subject = String::new();
        let results = Broker::publish_all(&broker, messages).await;
        let mut source = source(&broker, "g", "a").await;
        let pulled = pull(&mut source, 200).await;
        let mut pulled = pulled.iter();
        for (place, result) in results.iter().enumerate() {
            match result {
                Ok(published) if place != 40 && place != 99 => {
                    let (delivery, _) = pulled.next().expect("it is stored");
                    assert_eq!(
                        (text(delivery), &delivery.position),
                        (place.to_string(), &published.position)
                    );
                }
                Err(BrokerError::Refused { .. }) if place == 40 || place == 99 => {}
                other => panic!("{place}: {other:?}"),
            }
        }
        assert!(pulled.next().is_none(), "what was refused is not stored");
    }
}

/// A waiting pull is woken by them.
#[tokio::test]
async fn a_waiting_pull_gets_them() {
    let broker = Embedded::memory();
    let mut source = source(&broker, "g", "a").await;
    let messages = (0..3).map(numbered).collect();
    let (pulled, results) = tokio::join!(source.pull(3, HOUR), Broker::publish_all(&broker, messages));
    assert_eq!(texts(&pulled.unwrap()), ["0", "1", "2"]);
    assert!(results.iter().all(Result::is_ok));
}

/// Dropped half-way they are all there or none is, and the broker goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_stores_all_or_none() {
    let (_dir, path) = file();
    let broker = Embedded::file(&path);
    let mut stored = 0;
    for micros in (0..20).map(|round| round * 200) {
        let messages = (0..50).map(numbered).collect();
        let call = Broker::publish_all(&broker, messages);
        let _ = timeout(Duration::from_micros(micros), call).await;
        publish(&broker, "a", ["between"]).await;
        let mut source = source(&broker, &format!("g{micros}"), "a").await;
        let now = pull(&mut source, 10_000).await.len();
        assert!([1, 51].contains(&(now - stored)), "{} are stored", now - stored - 1);
        stored = now;
    }
    let messages = (0..50).map(numbered).collect();
    assert!(Broker::publish_all(&broker, messages).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_an_error_of_every_message() {
    let (dir, path) = file();
    let broker = Embedded::file(&path);
    publish(&broker, "a", ["x"]).await;
    std::fs::rename(&path, dir.path().join("away.db")).unwrap();
    let mut messages: Vec<_> = (0..3).map(numbered).collect();
    messages[1].subject = "a.*".to_owned();
    let results = Broker::publish_all(&broker, messages).await;
    assert!(matches!(results[1], Err(BrokerError::Refused { .. })), "{results:?}");
    for place in [0, 2] {
        let error = results[place].as_ref().unwrap_err();
        assert!(matches!(error, BrokerError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("was deleted or moved"), "{error}");
    }
}
