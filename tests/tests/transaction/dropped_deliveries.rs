//! A delivery whose future is dropped, at each of its polls and while its handler runs: nothing stays open, and the message is
//! redelivered.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use inbox_runtime::Outcome;
use inbox_tests::{Step, TestBroker, TestDatabase, World, eventually, lean_suite, next};

lean_suite!(
    f02_a_delivery_dropped_anywhere_leaves_nothing_open,
    f76_a_dropped_process_one_rolls_back,
);

/// Polls `process_one` a number of times, drops it, and does so for every number up to one that is enough.
async fn f02_a_delivery_dropped_anywhere_leaves_nothing_open<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let ack_wait = Duration::from_secs(2);
    let mut inbox = world
        .builder(&["billing"])
        .ack_wait(ack_wait)
        .build()
        .await
        .expect("an inbox");
    let (mut dropped, mut completed) = (0, 0);
    for polls in 1..200 {
        let id = format!("m{polls}");
        world.publish(&id).await;
        let done = {
            let mut delivery = pin!(inbox.process_one(Duration::from_secs(5)));
            let mut left = polls;
            poll_fn(|context| {
                left -= 1;
                match delivery.as_mut().poll(context) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome.expect("the broker"))),
                    Poll::Pending if left == 0 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        if done.is_none() {
            dropped += 1;
            // Another connection sees nothing of it, or all of it.
            let difference = format!(
                "SELECT (SELECT count(*) FROM effects WHERE msg_id = '{id}') - \
                 (SELECT count(*) FROM inbox_events WHERE message_id = '{id}')"
            );
            assert_eq!(world.database.number(&difference).await, 0, "after {polls} polls");
            world.broker.pass(ack_wait).await;
            let outcome = inbox.process_one(Duration::from_secs(1)).await.expect("the broker");
            // Nothing is redelivered if it was dropped after its acknowledgement.
            let as_expected = matches!(outcome, None | Some(Outcome::Processed | Outcome::Duplicate));
            assert!(as_expected, "{outcome:?} after {polls} polls");
            assert!(world.settled("billing").await, "after {polls} polls");
        }
        world.assert_done("billing", &id).await;
        // How many polls a delivery takes depends on how busy the machine is, so one that ended is not the end yet.
        completed = if done.is_some() { completed + 1 } else { 0 };
        if completed == 5 {
            break;
        }
    }
    assert!(dropped >= 3, "it was dropped at {dropped} places only");
    assert!(world.settled("billing").await);
}

async fn f76_a_dropped_process_one_rolls_back<B: TestBroker, D: TestDatabase>() {
    for step in [Step::Hang, Step::Exec(D::SLOW)] {
        let world = World::<B, D>::new().await;
        world.publish("m1").await;
        world
            .probe
            .script(move |call| if call.run == 1 { step.clone() } else { Step::Ok });
        let ack_wait = Duration::from_secs(2);
        let mut inbox = world
            .builder(&["billing"])
            .ack_wait(ack_wait)
            // The statement that was dropped goes on for a while.
            .lock_wait(Duration::from_secs(20))
            .build()
            .await
            .expect("an inbox");
        tokio::select! {
            outcome = inbox.process_one(Duration::from_secs(5)) => panic!("it ended: {outcome:?}"),
            () = eventually("the handler runs", || async { world.probe.total() == 1 }) => {}
        }
        world.assert_untouched("billing", "m1").await;
        world.broker.pass(ack_wait).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
        world.assert_done("billing", "m1").await;
        assert_eq!(world.probe.runs("billing", "m1"), 2);
        assert!(world.settled("billing").await);
    }
}
