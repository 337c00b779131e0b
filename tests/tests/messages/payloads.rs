//! What handlers take: payloads that are nearly right, headers, and arguments of a user's own.

use inbox_runtime::{
    DeadLetterReason, DeliveryContext, FromDelivery, HeaderName, Inbox, Json, Message, Outcome, Rejection,
};
use inbox_tests::{Order, Settled, Step, TestBroker, TestDatabase, World, lean_suite, next};

mod handlers;

lean_suite!(
    f92_a_number_is_exact_or_refused,
    f93_what_is_not_quite_json_is_taken_or_refused_by_a_table,
    f94_deep_nesting_is_an_error_and_never_the_end_of_the_process,
    f95_what_a_text_column_cannot_hold_is_kept_as_bytes,
    a_rejection_names_the_field,
    null_and_empty_are_told_apart,
    an_optional_payload_is_none_when_it_is_null,
    a_header_is_there_or_the_message_is_rejected,
    an_argument_of_ones_own_is_made_or_rejects,
    a_handler_can_take_the_rejection,
    a_copy_that_cannot_be_decoded_of_a_handled_message_is_a_duplicate,
);

/// The header that [`handlers`] read.
struct Tenant;

impl HeaderName for Tenant {
    const NAME: &'static str = "tenant";
}

/// An argument of a user's own.
struct Regions(Vec<String>);

impl FromDelivery for Regions {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        let Some(list) = context.delivery().headers.get("regions") else {
            return Err(Rejection::new("no region is named"));
        };
        let list = std::str::from_utf8(list).map_err(|error| Rejection::with_source("strange regions", error))?;
        Ok(Self(list.split(',').map(str::to_owned).collect()))
    }
}

/// A handler that takes it decides itself about a payload that is wrong.
type Lenient = Result<Json<Order>, Rejection>;

/// A world with an inbox of one of the handlers here.
struct Desk<B: TestBroker, D> {
    world: World<B, D>,
    inbox: Inbox,
    group: &'static str,
}

impl<B: TestBroker, D: TestDatabase> Desk<B, D> {
    async fn new(group: &'static str) -> Self {
        let world = World::new().await;
        let builder = world.builder_of(concat!(module_path!(), "::handlers"), &[group]);
        let inbox = builder.build().await.expect("an inbox");
        Self { world, inbox, group }
    }

    fn subject(&self) -> String {
        format!("p.{}", self.group)
    }

    /// Publishes a payload.
    async fn payload(&mut self, payload: impl Into<Vec<u8>>, effect: Option<&str>) {
        self.message(Message::new(self.subject(), payload.into()), effect).await;
    }

    /// Publishes a message, which is to be handled with that effect, or else to become a dead letter.
    async fn message(&mut self, message: Message, effect: Option<&str>) {
        let Self { world, inbox, group } = self;
        let shown: String = format!("{message:?}").chars().take(300).collect();
        let count = "SELECT count(*) FROM effects";
        let (all, letters) = (world.database.number(count).await, world.letters(group).await.len());
        let same = world.database.effects(group, effect.unwrap_or_default()).await;
        world.broker.publish(message.clone()).await;
        let outcome = next(inbox).await;
        match effect {
            Some(effect) => {
                assert_eq!(outcome, Outcome::Processed, "{shown}");
                assert_eq!(world.database.effects(group, effect).await, same + 1, "{shown}");
                assert_eq!(world.letters(group).await.len(), letters, "{shown}");
            }
            None => {
                assert_eq!(outcome, Outcome::DeadLettered, "{shown}");
                assert_eq!(world.database.number(count).await, all, "{shown}");
                let letters = world.letters(group).await.split_off(letters);
                assert_eq!(letters.len(), 1, "{shown}");
                assert_eq!(letters[0].reason, DeadLetterReason::Rejected, "{shown}");
                assert_eq!(letters[0].payload, message.payload, "{shown}");
                // Where the broker doesn't count deliveries, a group's first one counts as a redelivery, so its attempt is on record.
                let counted = u32::from(!B::COUNTS);
                assert!(letters[0].attempts <= counted, "it never reached the handler: {shown}");
            }
        }
        let settled = self.world.broker.settled(self.group, &self.subject()).await;
        assert_eq!(settled, Some(Settled::ALL), "{shown}");
    }

    /// Publishes a message without a usable payload, with a header.
    fn with_header(&self, name: &str, value: &'static [u8]) -> Message {
        Message::new(self.subject(), "{}").header(name, value)
    }

    async fn last_error(&self) -> String {
        let letters = self.world.letters(self.group).await;
        letters.last().expect("a dead letter").error.clone()
    }
}

async fn f92_a_number_is_exact_or_refused<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("number").await;
    for (number, effect) in [
        ("18446744073709551615", Some("18446744073709551615")),
        ("9007199254740993", Some("9007199254740993")),
        ("0", Some("0")),
        ("18446744073709551616", None),
        ("1.0", None),
        ("1e2", None),
        ("-0", None),
        ("-1", None),
        ("NaN", None),
        ("01", None),
        ("\"1\"", None),
    ] {
        desk.payload(format!(r#"{{"n":{number}}}"#), effect).await;
    }
}

async fn f93_what_is_not_quite_json_is_taken_or_refused_by_a_table<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("doc").await;
    let plain = Some("1 None");
    for (payload, effect) in [
        (&br#"{"n":1,"note":"a"}"#[..], Some(r#"1 Some("a")"#)),
        (b"\xef\xbb\xbf{\"n\":1}", None),
        (br#"{"n":1,"n":2}"#, None),
        (br#"{"n":1,"x":1,"x":2}"#, plain),
        (br#"{"n":1} x"#, None),
        (br#"{"n":1}{"n":2}"#, None),
        (b" {\"n\":1}\r\n", plain),
        (b"", None),
        (b" ", None),
        (b"null", None),
        (b"{\"n\":1,\"note\":\"\xff\"}", None),
        (b"{\"n\":1,\"x\":\"\xff\"}", plain),
        (br#"{"n":1,"note":"\ud800"}"#, None),
        (br#"{"n":1,"x":"\ud800"}"#, plain),
        (br#"{"n":1,}"#, None),
        (br#"{'n':1}"#, None),
    ] {
        desk.payload(payload, effect).await;
    }
    if B::NULLS {
        desk.message(Message::tombstone("p.doc"), None).await;
    }
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

async fn f94_deep_nesting_is_an_error_and_never_the_end_of_the_process<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("value").await;
    desk.payload(nested(100), Some("true")).await;
    desk.payload(nested(200), None).await;
    desk.payload(nested(100_000), None).await;
    // What is only skipped, or kept as text, isn't descended into.
    let mut desk = Desk::<B, D>::new("doc").await;
    for levels in [200, 100_000] {
        desk.payload(nested(levels), None).await;
        desk.payload(format!(r#"{{"n":1,"x":{}}}"#, nested(levels)), Some("1 None"))
            .await;
        desk.payload(format!(r#"{{"n":1,"note":{}}}"#, nested(levels)), None)
            .await;
    }
    let mut desk = Desk::<B, D>::new("raw-json").await;
    for levels in [200, 100_000] {
        desk.payload(nested(levels), Some(&(2 * levels).to_string())).await;
    }
}

async fn f95_what_a_text_column_cannot_hold_is_kept_as_bytes<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let payloads = [
        r#"{"order_id":"a\u0000b"}"#,
        "{\"order_id\":\"c\",\"x\":\"\\ud800\"}",
        r#"{"order_id":"d"}"#,
    ];
    for (number, payload) in payloads.into_iter().enumerate() {
        let message = Message::new("order.created", payload).id(format!("m{number}"));
        world.broker.publish(message.header("note", &b"nul \0 here"[..])).await;
    }
    world.probe.script(|call| match call.id.as_str() {
        "m2" => Step::Ok,
        _ => Step::Permanent("the error has a nul \0 in it"),
    });
    let mut inbox = world.inbox(&["billing"]).await;
    let report = inbox.run_until_idle().await.expect("the broker");
    assert_eq!((report.dead_lettered, report.processed), (2, 1), "{report}");
    assert_eq!(world.probe.calls()[0].order.order_id, "a\0b", "the handler has it");
    let letters = world.letters("billing").await;
    for (letter, payload) in letters.iter().zip(payloads) {
        assert_eq!(letter.payload.as_deref(), Some(payload.as_bytes()));
        assert_eq!(letter.headers.get("note"), Some(&b"nul \0 here"[..]));
        assert!(letter.error.starts_with("the error has a nul"), "{}", letter.error);
        assert!(letter.error.ends_with("in it"), "{}", letter.error);
    }
    assert_eq!(letters.len(), 2);
    world.assert_done("billing", "m2").await;
    assert!(world.settled("billing").await);
}

async fn a_rejection_names_the_field<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("invoice").await;
    desk.payload(r#"{"lines":[{"amount":1},{"amount":2}]}"#, Some("3"))
        .await;
    desk.payload(r#"{"lines":[{"amount":1},{"amount":"2"}]}"#, None).await;
    let error = desk.last_error().await;
    assert!(
        error.contains("at `lines[1].amount`") && error.contains("expected u64"),
        "{error}"
    );
    desk.payload(r#"{"lines":[{"amount":1},{}]}"#, None).await;
    let error = desk.last_error().await;
    assert!(
        error.contains("at `lines[1]`") && error.contains("missing field `amount`"),
        "{error}"
    );
    desk.payload("[", None).await;
    let error = desk.last_error().await;
    assert!(error.contains("not the expected JSON"), "{error}");
}

async fn null_and_empty_are_told_apart<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    let null = B::NULLS.then(|| Message::tombstone("raw.a"));
    let others = [Message::new("raw.a", ""), Message::new("raw.b", "xyz")];
    let mut inbox = world.inbox(&["raw"]).await;
    for message in null.into_iter().chain(others) {
        world.broker.publish(message).await;
        assert_eq!(next(&mut inbox).await, Outcome::Processed);
    }
    let seen: Vec<_> = world
        .probe
        .calls()
        .into_iter()
        .map(|call| call.order.order_id)
        .collect();
    let expected = ["null", "0 bytes", "3 bytes"];
    assert_eq!(seen, expected[usize::from(!B::NULLS)..]);
    assert_eq!(world.broker.settled("raw", "raw.>").await, Some(Settled::ALL));
}

async fn an_optional_payload_is_none_when_it_is_null<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("optional").await;
    if B::NULLS {
        desk.message(Message::tombstone("p.optional"), Some("none")).await;
    }
    desk.message(Order::new("o1").to("p.optional"), Some("o1")).await;
    // Neither of these is a missing payload.
    desk.payload("", None).await;
    desk.payload("null", None).await;
    if B::NULLS {
        // Where it isn't optional the error says what to write.
        let mut desk = Desk::<B, D>::new("number").await;
        desk.message(Message::tombstone("p.number"), None).await;
        let error = desk.last_error().await;
        assert!(error.contains("Option<Json<_>>"), "{error}");
    }
}

async fn a_header_is_there_or_the_message_is_rejected<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("tenant").await;
    desk.message(desk.with_header("tenant", b"acme"), Some("acme")).await;
    desk.message(desk.with_header("Tenant", b"acme"), Some("acme")).await;
    desk.message(desk.with_header("tenants", b"acme"), None).await;
    let error = desk.last_error().await;
    assert!(error.contains("the header `tenant` is missing"), "{error}");
    desk.message(desk.with_header("tenant", b"\xff"), None).await;
    let error = desk.last_error().await;
    assert!(error.contains("`tenant` is not UTF-8"), "{error}");

    let mut desk = Desk::<B, D>::new("maybe-tenant").await;
    desk.message(desk.with_header("tenant", b"acme"), Some("acme")).await;
    desk.message(desk.with_header("other", b"acme"), Some("none")).await;
    desk.message(desk.with_header("tenant", b"\xff"), None).await;
}

async fn an_argument_of_ones_own_is_made_or_rejects<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("regions").await;
    desk.message(desk.with_header("regions", b"eu,us"), Some("eu+us")).await;
    desk.payload("{}", None).await;
    assert_eq!(desk.last_error().await, "no region is named");
    desk.message(desk.with_header("regions", b"\xff"), None).await;
    let error = desk.last_error().await;
    assert!(
        error.starts_with("strange regions: invalid utf-8"),
        "with its cause: {error}"
    );
}

async fn a_handler_can_take_the_rejection<B: TestBroker, D: TestDatabase>() {
    let mut desk = Desk::<B, D>::new("lenient").await;
    desk.message(Order::new("o1").to("p.lenient"), Some("o1")).await;
    desk.payload("[", Some("the payload is not the expected JSON")).await;
    desk.payload(
        r#"{"order_id":1}"#,
        Some("the payload is not the expected JSON at `order_id`"),
    )
    .await;
}

async fn a_copy_that_cannot_be_decoded_of_a_handled_message_is_a_duplicate<B: TestBroker, D: TestDatabase>() {
    let world = World::<B, D>::new().await;
    world.publish("m1").await;
    for id in ["m1", "m2"] {
        world.broker.publish(Message::new("order.created", "[").id(id)).await;
    }
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    assert_eq!(next(&mut inbox).await, Outcome::Duplicate);
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered, "this one wasn't handled");
    let ids: Vec<_> = world
        .letters("billing")
        .await
        .into_iter()
        .map(|letter| letter.message_id)
        .collect();
    assert_eq!(ids, [Some("m2".to_owned())]);
    world.assert_done("billing", "m1").await;
    world.assert_untouched("billing", "m2").await;
    assert!(world.settled("billing").await);
}
