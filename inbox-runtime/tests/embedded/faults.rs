//! Faults of the file while a program has it open.

use super::*;

/// Writes to an unlinked file are lost, so none is confirmed.
#[tokio::test]
async fn g10_a_deleted_or_replaced_file_is_an_error_until_it_is_put_back() {
    let (dir, path) = file();
    let broker = Embedded::file(&path);
    let mut source = source(&broker, "g", "a").await;
    publish(&broker, "a", ["x", "y"]).await;
    let (_, lease) = one(&mut source).await;
    let away = dir.path().join("away.db");
    for replaced in [false, true] {
        std::fs::rename(&path, &away).unwrap();
        if replaced {
            std::fs::write(&path, "").unwrap();
        }
        let what = if replaced {
            "was replaced"
        } else {
            "was deleted or moved"
        };
        for error in [
            broker.publish(Message::new("a", "z")).await.unwrap_err(),
            source.pull(1, NOW).await.unwrap_err(),
            lease.ack().await.unwrap_err(),
            lease.ack_confirmed().await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("restart the program"), "{text}");
            assert!(matches!(error, BrokerError::Unavailable { .. }), "{error:?}");
        }
        std::fs::rename(&away, &path).unwrap();
    }
    lease.ack().await.unwrap();
    assert_eq!(texts(&pull(&mut source, 9).await), ["y"]);
}
