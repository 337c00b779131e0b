//! Whether an inbox can work, and why not: as values, and over HTTP.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use inbox_runtime::{Error, HandlerHealth, InboxBuilder, InboxHandle, SourceStatus, http};
use inbox_tests::{Step, TestBroker, TestDatabase, World, ask, embedded_suite, eventually};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};

embedded_suite!(
    each_handler_says_what_is_wrong_with_it,
    a_part_that_waits_makes_its_handler_unready,
    g36_a_back_off_is_shown_and_makes_nobody_unready,
    g36_acknowledgements_that_keep_failing_are_named,
    g36_a_message_that_hangs_while_others_go_on_is_named,
    messages_that_wait_for_their_back_off_are_counted,
    a_handler_that_does_not_get_on_is_seen,
    g30_what_stands_still_for_longer_than_its_bound_has_a_reason,
    what_looks_at_the_health_outlives_the_inbox,
    the_routes_are_served_until_the_drain_is_over,
    the_routes_can_be_mounted,
    an_address_that_cannot_be_served_on_is_a_start_error,
);

/// The health of the handler `billing`.
fn billing(inbox: &InboxHandle) -> HandlerHealth {
    let health = inbox.health();
    let found = health.handlers.iter().find(|handler| handler.group == "billing");
    found.cloned().expect("its health")
}

async fn stop(inbox: InboxHandle) {
    inbox.stop();
    inbox.join().await.expect("stopped");
}

async fn each_handler_says_what_is_wrong_with_it<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.flaky.fail_pulls(1000);
    let inbox = world.builder(&["billing", "shipping"]).spawn().await.expect("an inbox");
    assert_eq!(inbox.health().handlers.len(), 2);
    eventually("no messages can be pulled", async || billing(&inbox).broker.is_some()).await;
    let one = billing(&inbox);
    assert!(!one.ready && one.database.is_none(), "{one:?}");
    assert!(
        one.broker.as_ref().is_some_and(|why| why.contains("cut by the test")),
        "{one:?}"
    );
    assert_eq!((one.subject, one.in_flight), ("order.created", 0));
    world.flaky.fail_pulls(0);
    eventually("the broker answers", async || inbox.health().ready).await;

    world
        .database
        .exec("ALTER TABLE inbox_events RENAME TO hidden_events")
        .await;
    world.publish("m1").await;
    eventually("the database can't be used", async || {
        billing(&inbox).database.is_some()
    })
    .await;
    let one = billing(&inbox);
    assert!(!one.ready && one.broker.is_none(), "{one:?}");
    assert!(
        one.database.as_ref().is_some_and(|why| why.contains("inbox_events")),
        "{one:?}"
    );
    world
        .database
        .exec("ALTER TABLE hidden_events RENAME TO inbox_events")
        .await;
    eventually("it can be used again", async || inbox.health().ready).await;
    assert_eq!(billing(&inbox).database, None);
    stop(inbox).await;
}

async fn a_part_that_waits_makes_its_handler_unready<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let status = SourceStatus::default();
    world.flaky.say(status.clone());
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    assert!(inbox.health().ready);
    status.set_blocked("orders:3", "offset 17 failed and is tried again in 4s");
    let health = inbox.health();
    assert!(health.live && !health.ready && !health.handlers[0].ready, "{health:?}");
    assert!(
        health.reasons[0].contains("::billing: orders:3 waits: offset 17"),
        "{health:?}"
    );
    assert_eq!(
        health.handlers[0].waiting,
        ["orders:3 waits: offset 17 failed and is tried again in 4s"]
    );
    status.clear_blocked("orders:3");
    assert!(inbox.health().ready);
    stop(inbox).await;
}

async fn g36_a_back_off_is_shown_and_makes_nobody_unready<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let status = SourceStatus::default();
    world.flaky.say(status.clone());
    let builder = world.builder(&["billing"]).http_addr(([127, 0, 0, 1], 0));
    let inbox = builder.spawn().await.expect("an inbox");
    let addr = inbox.http_addr().expect("an address");
    let shown = ["orders:3 backs off: offset 17 failed and is tried again in 4s"];
    status.back_off("orders:3", "offset 17 failed and is tried again in 4s");
    let health = inbox.health();
    assert!(health.ready && health.reasons.is_empty(), "{health:?}");
    assert_eq!(health.handlers[0].back_offs, shown);
    let (code, body) = ask_json(addr, "/readyz").await;
    assert_eq!(
        (code, &body["handlers"][0]["back_offs"][0]),
        (200, &shown[0].into()),
        "{body}"
    );
    assert_eq!(body["handlers"][0]["waiting"], serde_json::json!([]), "{body}");

    // The same part can have lost its leader meanwhile.
    status.set_blocked("orders:3", "it has no leader");
    assert!(!inbox.health().ready);
    status.clear_blocked("orders:3");
    let health = inbox.health();
    assert!(health.ready && health.handlers[0].back_offs.is_empty(), "{health:?}");

    // G78: numbers that somebody reads, and none where nothing is known.
    assert_eq!(body["handlers"][0].get("lag"), None, "{body}");
    let since = body["handlers"][0]["since_progress"].to_string();
    let digits = since.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert!(digits <= 3, "{body}");
    status.set_lag(Some(12));
    let (_, body) = ask_json(addr, "/readyz").await;
    assert_eq!(body["handlers"][0]["lag"], 12, "{body}");
    stop(inbox).await;
}

async fn g36_acknowledgements_that_keep_failing_are_named<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let builder = world.builder(&["billing"]).stall_after(Duration::from_millis(300));
    let inbox = builder.spawn().await.expect("an inbox");
    // One that fails and isn't followed by another one is nothing.
    world.flaky.lose_acks(1);
    world.publish("m0").await;
    eventually("m0 was handled", async || inbox.report().ack_failures == 1).await;
    world.publish("m1").await;
    eventually("m1 was acknowledged", async || inbox.report().acked == 1).await;
    assert!(inbox.health().ready);

    world.flaky.lose_acks(u32::MAX);
    let number = AtomicU32::new(2);
    eventually("it is said that none is acknowledged", async || {
        world
            .publish(&format!("m{}", number.fetch_add(1, Ordering::Relaxed)))
            .await;
        let one = billing(&inbox);
        !one.ready
            && one
                .waiting
                .iter()
                .any(|why| why.contains("acknowledgement has failed") && why.contains("cut by the test"))
    })
    .await;
    world.flaky.lose_acks(0);
    world.publish("last").await;
    eventually("they are acknowledged again", async || inbox.health().ready).await;
    stop(inbox).await;
}

async fn g36_a_message_that_hangs_while_others_go_on_is_named<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    // Its acknowledgement never comes to an end; those of the others do.
    let gate = Arc::new(Semaphore::new(0));
    let taken = Arc::new(AtomicBool::new(false));
    world.flaky.watch_acks({
        let gate = gate.clone();
        move || {
            let (gate, first) = (gate.clone(), !taken.swap(true, Ordering::SeqCst));
            async move {
                if first {
                    let _ = gate.acquire().await;
                }
            }
        }
    });
    let builder = world.builder(&["hasty"]).stall_after(Duration::from_millis(500));
    let inbox = builder.spawn().await.expect("an inbox");
    world.publish("m1").await;
    let number = AtomicU32::new(2);
    eventually("it is said that something hangs", async || {
        world
            .publish(&format!("m{}", number.fetch_add(1, Ordering::Relaxed)))
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let health = inbox.health();
        !health.ready
            && health
                .reasons
                .iter()
                .any(|why| why.contains("waited for its acknowledgement") || why.contains("no message was settled"))
    })
    .await;
    gate.add_permits(1);
    eventually("it goes on", async || inbox.health().ready).await;
    stop(inbox).await;
}

async fn messages_that_wait_for_their_back_off_are_counted<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.probe.script(|_| Step::RetryAfter(Duration::from_secs(60)));
    world.publish("m1").await;
    world.publish("m2").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    eventually("both wait", async || billing(&inbox).backing_off == 2).await;
    let one = billing(&inbox);
    assert!(one.ready, "one bad message is not the handler's: {one:?}");
    assert!(
        one.next_retry.is_some_and(|time| time <= Duration::from_secs(60)),
        "{one:?}"
    );
    stop(inbox).await;
}

async fn a_handler_that_does_not_get_on_is_seen<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |_| Step::Gate(gate.clone())
    });
    // One that is handled, and one in hand: nothing is pulled any more.
    world.publish("m1").await;
    world.publish("m2").await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    let stuck = Duration::from_secs(1);
    eventually("nothing happens", async || billing(&inbox).since_progress > stuck).await;
    assert_eq!(billing(&inbox).in_flight, 2);
    gate.add_permits(2);
    eventually("it gets on", async || {
        let one = billing(&inbox);
        one.since_progress < stuck && one.in_flight == 0
    })
    .await;
    stop(inbox).await;
}

async fn g30_what_stands_still_for_longer_than_its_bound_has_a_reason<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    // Neither its timeout of a second nor anything else ends it.
    world.probe.script(|call| match call.run {
        1 => Step::Block(Duration::from_secs(6)),
        _ => Step::Ok,
    });
    world.publish("m1").await;
    world.publish("m2").await;
    let builder = world.builder(&["hasty"]).stall_after(Duration::from_millis(500));
    let inbox = builder.spawn().await.expect("an inbox");
    eventually("it is said that nothing goes on", async || {
        let health = inbox.health();
        let reason = health.reasons.iter().find(|reason| reason.contains("hasty"));
        !health.ready
            && reason.is_some_and(|reason| reason.contains("no message was settled") && reason.contains("restart"))
    })
    .await;
    eventually("it goes on", async || inbox.health().ready).await;
    stop(inbox).await;
}

async fn what_looks_at_the_health_outlives_the_inbox<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let (tell, told) = oneshot::channel::<()>();
    let builder = world.builder(&["billing"]).shutdown(async {
        let _ = told.await;
    });
    let inbox = builder.build().await.expect("an inbox");
    let watch = inbox.health_handle();
    let health = watch.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert_eq!(health.reasons, ["the inbox does not run yet"]);
    let running = tokio::spawn(inbox.run());
    eventually("it runs", async || watch.clone().health().ready).await;
    drop(tell);
    running.await.expect("no panic").expect("stopped");
    let health = watch.health();
    assert!(!health.live && !health.ready, "{health:?}");
    assert_eq!(health.reasons, ["the inbox has stopped"]);

    let inbox = world.inbox(&["billing"]).await;
    let watch = inbox.health_handle();
    drop(inbox.run());
    assert!(!watch.health().live, "dropped, it is over");
}

/// What a server answers to a GET, as JSON.
async fn ask_json(addr: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    let (status, body) = ask(addr, path).await.expect("an answer");
    (status, serde_json::from_str(&body).expect("JSON"))
}

async fn the_routes_are_served_until_the_drain_is_over<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let gate = Arc::new(Semaphore::new(0));
    world.probe.script({
        let gate = gate.clone();
        move |_| Step::Gate(gate.clone())
    });
    let builder = world.builder(&["billing"]).http_addr(([127, 0, 0, 1], 0));
    let inbox = builder.spawn().await.expect("an inbox");
    let addr = inbox.http_addr().expect("an address");
    for path in ["/healthz", "/readyz"] {
        let (status, body) = ask_json(addr, path).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["ready"], true, "{body}");
        assert_eq!(body["handlers"][0]["group"], "billing", "{body}");
    }
    let (status, text) = ask(addr, "/metrics").await.expect("an answer");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("# TYPE inbox_deliveries_total counter"), "{text}");
    assert!(text.contains("inbox_deliveries_total{group=\"billing\""), "{text}");

    world.publish("m1").await;
    eventually("m1 is being handled", async || world.probe.total() == 1).await;
    inbox.stop();
    let (status, body) = ask_json(addr, "/readyz").await;
    assert_eq!(
        (status, body["reasons"][0].as_str()),
        (503, Some("the inbox is stopping")),
        "{body}"
    );
    assert_eq!(ask_json(addr, "/healthz").await.0, 200, "it is alive while it drains");
    gate.add_permits(1);
    inbox.join().await.expect("stopped");
    world.assert_done("billing", "m1").await;
    eventually("nobody answers", async || ask(addr, "/healthz").await.is_none()).await;
}

async fn the_routes_can_be_mounted<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let inbox = world.builder(&["billing"]).spawn().await.expect("an inbox");
    assert_eq!(inbox.http_addr(), None, "nothing is served unasked");
    let app = Router::new()
        .route("/orders", get(async || "none"))
        .merge(http::router(&inbox));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let addr = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    assert_eq!(ask(addr, "/orders").await, Some((200, "none".to_owned())));
    assert_eq!(ask_json(addr, "/readyz").await.0, 200);
    stop(inbox).await;
    for path in ["/healthz", "/readyz"] {
        let (status, body) = ask_json(addr, path).await;
        assert_eq!((status, &body["live"]), (503, &false.into()), "{body}");
    }
    server.abort();
}

async fn an_address_that_cannot_be_served_on_is_a_start_error<B: TestBroker, D: TestDatabase>() {
    let problem = async |builder: InboxBuilder| match builder.build().await {
        Err(Error::Start(errors)) => errors.to_string(),
        other => panic!("not a start error: {other:?}"),
    };
    let world = World::<B, D>::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let addr = taken.local_addr().expect("its address");
    let told = problem(world.builder(&["billing"]).http_addr(addr)).await;
    assert!(
        told.contains("`.http_addr(…)`") && told.contains(&addr.to_string()),
        "{told}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("inbox.toml");
    std::fs::write(&file, format!("\nhttp_addr = \"{addr}\"")).expect("written");
    let told = problem(world.builder(&["billing"]).config_file(&file)).await;
    assert!(
        told.contains("inbox.toml:2: the address") && told.contains("in use"),
        "{told}"
    );
    std::fs::write(&file, "http_addr = \"localhost\"").expect("written");
    let told = problem(world.builder(&["billing"]).config_file(&file)).await;
    assert!(
        told.contains("inbox.toml:1: `http_addr`") && told.contains("0.0.0.0:8080"),
        "{told}"
    );
}
