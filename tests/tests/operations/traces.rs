//! Spans and logs: one span for each message, in the trace of whoever published it, and no word of what is in it.

use inbox_runtime::{Message, Outcome, telemetry};
use inbox_tests::{Order, Step, TestBroker, TestDatabase, World, embedded_suite, eventually, next};
use opentelemetry::trace::{SpanId, TraceId};

use super::capture::captured;

embedded_suite!(
    a_message_has_one_span_for_each_delivery,
    a_message_is_handled_in_the_trace_that_published_it,
    a_trace_that_cannot_be_read_is_ignored,
    no_payload_no_header_and_no_secret_is_logged,
);

/// An id that no other test has.
fn unique(what: &str) -> String {
    format!("{what}-{:016x}", fastrand::u64(..))
}

async fn a_message_has_one_span_for_each_delivery<B: TestBroker, D: TestDatabase>() {
    let captured = captured();
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("once"),
        _ => Step::Ok,
    });
    let id = unique("span");
    world.publish(&id).await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Failed);
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    // The database's own thread lets go of a span a little later.
    eventually("both spans have ended", async || captured.spans(&id).len() >= 2).await;
    let spans = captured.spans(&id);
    assert_eq!(spans.len(), 2, "{spans:?}");
    let handler = format!("inbox_tests::handlers::{}::billing", D::HANDLERS);
    for ((name, fields), (count, outcome)) in spans.iter().zip([("1", "failed"), ("2", "processed")]) {
        assert_eq!(name, telemetry::SPAN);
        let expected = [
            ("delivery_count", count),
            ("group", "billing"),
            ("handler", &handler),
            ("message_id", &id),
            ("outcome", outcome),
            ("subject", "order.created"),
        ];
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(fields, expected);
    }
}

async fn a_message_is_handled_in_the_trace_that_published_it<B: TestBroker, D: TestDatabase>() {
    let captured = captured();
    let world = World::<B, D>::new().await;
    let id = unique("trace");
    let message = Order::new("o1")
        .to("order.created")
        .id(id.clone())
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("tracestate", "shop=17");
    world.broker.publish(message).await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    eventually("the span has ended", async || !captured.exported(&id).is_empty()).await;
    let spans = captured.exported(&id);
    assert_eq!(spans.len(), 1, "{spans:?}");
    let span = &spans[0];
    assert_eq!(span.name, telemetry::SPAN);
    assert_eq!(
        span.span_context.trace_id(),
        TraceId::from(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c)
    );
    assert_eq!(span.parent_span_id, SpanId::from(0xb7ad_6b71_6920_3331));
    assert_eq!(span.span_context.trace_state().get("shop"), Some("17"));
}

async fn a_trace_that_cannot_be_read_is_ignored<B: TestBroker, D: TestDatabase>() {
    let captured = captured();
    let world = World::<B, D>::new().await;
    let id = unique("untraced");
    let message = Order::new("o1")
        .to("order.created")
        .id(id.clone())
        .header("traceparent", "00-these-are-no-digits-01");
    world.broker.publish(message).await;
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    eventually("the span has ended", async || !captured.exported(&id).is_empty()).await;
    let spans = captured.exported(&id);
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(spans[0].parent_span_id, SpanId::INVALID);
    assert_ne!(spans[0].span_context.trace_id(), TraceId::INVALID, "a trace of its own");
}

async fn no_payload_no_header_and_no_secret_is_logged<B: TestBroker, D: TestDatabase>() {
    let captured = captured();
    let world = World::<B, D>::new().await;
    world.probe.script(|call| match call.run {
        1 => Step::Fail("once"),
        _ => Step::Ok,
    });
    let canary = unique("canary");
    let id = unique("logged");
    let publish = async |payload: String, id: String| {
        let message = Message::new("order.created", payload).header("authorization", canary.clone());
        world.broker.publish(message.id(id)).await;
    };
    // Handled after a failure; of the wrong type; with an unknown word where JSON was expected; no JSON at all; without an
    // id; a duplicate that differs.
    publish(format!(r#"{{"order_id": "{canary}"}}"#), id.clone()).await;
    publish(
        format!(r#"{{"order_id": "o1", "amount": "{canary}"}}"#),
        unique("wrong"),
    )
    .await;
    publish(format!(r#""{canary}""#), unique("text")).await;
    publish(canary.clone(), unique("none")).await;
    publish(format!(r#"{{"order_id": "{canary}"}}"#), String::new()).await;
    publish(format!(r#"{{"order_id": "{canary}", "amount": 7}}"#), id.clone()).await;
    let mut inbox = world.inbox(&["billing", "by-header"]).await;
    let mut outcomes = Vec::new();
    while let Some(outcome) = inbox
        .process_one(std::time::Duration::from_millis(300))
        .await
        .expect("the broker")
    {
        outcomes.push(outcome);
    }
    for expected in [
        Outcome::Processed,
        Outcome::Failed,
        Outcome::DeadLettered,
        Outcome::Duplicate,
    ] {
        assert!(outcomes.contains(&expected), "no {expected}: {outcomes:?}");
    }
    // A start that fails is logged by nobody but its caller; what is tried on the way may be.
    let url = format!("postgres://user:{canary}@localhost:1/app");
    let wrong = inbox_runtime::Inbox::builder()
        .broker_url(url.clone())
        .groups(["billing"]);
    let error = format!("{:?}", wrong.build().await.expect_err("no broker"));
    assert!(!error.contains(&canary), "{error}");

    let log = captured.log();
    assert!(log.contains(&id), "the log has what happens");
    let told: Vec<_> = log.lines().filter(|line| line.contains(&canary)).collect();
    assert!(told.is_empty(), "{told:#?}");
    // The letter has it, for whoever may read the payload anyway.
    let letters = world.letters("billing").await;
    assert!(
        letters.iter().any(|letter| letter.error.contains(&canary)),
        "{letters:?}"
    );
    assert_every_field_is_documented();
}

/// The table has every field of what was logged so far.
fn assert_every_field_is_documented() {
    let known: Vec<_> = telemetry::FIELDS.iter().map(|field| field.name).collect();
    let mut fields = captured().event_fields();
    fields.remove("message");
    fields.retain(|name| !name.starts_with("log.") && !known.contains(&name.as_str()));
    assert!(fields.is_empty(), "not in `telemetry::FIELDS`: {fields:?}");
}
