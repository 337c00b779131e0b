//! A broker that breaks one rule is found out: the embedded one, with `publish_all` changed.

use std::{marker::PhantomData, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use inbox_runtime::{
    Broker, BrokerError, Embedded, Message, Published, Subscription,
    testing::conformance::{BrokerRules, broker},
};

type Results = Vec<Result<Published, BrokerError>>;

/// What is changed.
trait Mutation: Clone + Send + Sync + 'static {
    const MAX_PAYLOAD: Option<usize> = None;

    /// Publishes messages.
    fn publish_all(broker: &Embedded, messages: Vec<Message>) -> impl Future<Output = Results> + Send;
}

#[derive(Clone)]
struct Mutant<M>(Embedded, PhantomData<M>);

impl<M: Mutation> Broker for Mutant<M> {
    type Source = <Embedded as Broker>::Source;

    async fn describe(&self) -> Result<String, BrokerError> {
        self.0.describe().await
    }

    async fn subscribe(&self, subscriptions: Vec<Subscription>) -> Result<Vec<Self::Source>, BrokerError> {
        self.0.subscribe(subscriptions).await
    }

    async fn publish(&self, message: Message) -> Result<Published, BrokerError> {
        self.0.publish(message).await
    }

    async fn publish_all(&self, messages: Vec<Message>) -> Results {
        M::publish_all(&self.0, messages).await
    }

    fn max_payload(&self) -> Option<usize> {
        M::MAX_PAYLOAD
    }
}

/// Asserts that a broker with this change is found out by the rule with these words.
async fn is_found_out<M: Mutation>(rule: &str) {
    let fresh = async || Mutant::<M>(Embedded::memory(), PhantomData);
    let checked = AssertUnwindSafe(broker(BrokerRules::default(), fresh)).catch_unwind();
    let panic = checked.await.expect_err("the broker breaks a rule");
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .expect("a text");
    assert!(text.contains(rule), "{text}");
}

#[derive(Clone)]
struct LastFirst;
impl Mutation for LastFirst {
    async fn publish_all(broker: &Embedded, mut messages: Vec<Message>) -> Results {
        messages.reverse();
        let mut results = Broker::publish_all(broker, messages).await;
        results.reverse();
        results
    }
}

#[derive(Clone)]
struct ResultsOfOthers;
impl Mutation for ResultsOfOthers {
    async fn publish_all(broker: &Embedded, messages: Vec<Message>) -> Results {
        let mut results = Broker::publish_all(broker, messages).await;
        results.reverse();
        results
    }
}

#[derive(Clone)]
struct OneResultTooFew;
impl Mutation for OneResultTooFew {
    async fn publish_all(broker: &Embedded, messages: Vec<Message>) -> Results {
        let mut results = Broker::publish_all(broker, messages).await;
        results.pop();
        results
    }
}

/// What follows a message that is too large is not published.
#[derive(Clone)]
struct StopsAtRefusal;
impl Mutation for StopsAtRefusal {
    const MAX_PAYLOAD: Option<usize> = Some(1000);

    async fn publish_all(broker: &Embedded, messages: Vec<Message>) -> Results {
        let (mut results, mut refused) = (Vec::new(), false);
        for message in messages {
            let source = None;
            let is_large = message.payload.as_ref().is_some_and(|payload| payload.len() > 1000);
            results.push(match (refused, is_large) {
                (true, _) => Err(BrokerError::NotNow {
                    message: "another one was refused".to_owned(),
                    source,
                }),
                (false, true) => Err(BrokerError::Refused {
                    message: "it is too large".to_owned(),
                    source,
                }),
                (false, false) => broker.publish(message).await,
            });
            refused |= is_large;
        }
        results
    }
}

#[tokio::test]
async fn messages_that_are_stored_in_another_order() {
    is_found_out::<LastFirst>("stored in the order in which they were given").await;
}

#[tokio::test]
async fn results_that_are_those_of_other_messages() {
    is_found_out::<ResultsOfOthers>("the results of `publish_all` stand in the order of its messages").await;
}

#[tokio::test]
async fn a_result_that_is_missing() {
    is_found_out::<OneResultTooFew>("one result for each message").await;
}

#[tokio::test]
async fn a_refusal_that_keeps_others_back() {
    is_found_out::<StopsAtRefusal>("keeps none of its key back").await;
}
