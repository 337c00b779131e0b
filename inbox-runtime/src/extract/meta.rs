//! What is known about a message besides its payload.

use std::{sync::Arc, time::SystemTime};

use uuid::Uuid;

use super::{DeliveryContext, FromDelivery, Rejection};
use crate::delivery::{Delivery, Headers};

/// The namespace of idempotency keys, so that they differ from every other version-5 UUID.
const KEYS: Uuid = Uuid::from_u128(0x1d3a_4f0c_7c52_4a61_9d0b_62a4_1c6e_8f27);

/// What is known about a message besides its payload. Cheap to clone.
///
/// ```
/// use inbox_runtime::Meta;
///
/// let meta = Meta::builder().group("billing").message_id("evt-1").build();
/// assert_eq!(meta.message_id(), "evt-1");
/// assert_eq!(meta.idempotency_key(), Meta::builder().group("billing").message_id("evt-1").build().idempotency_key());
/// assert_ne!(meta.idempotency_key(), Meta::builder().group("shipping").message_id("evt-1").build().idempotency_key());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta(Arc<Parts>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts {
    group: String,
    message_id: String,
    delivery: Delivery,
}

impl Meta {
    pub(crate) fn new(group: &str, message_id: String, delivery: &Delivery) -> Self {
        Self(Arc::new(Parts {
            group: group.to_owned(),
            message_id,
            delivery: Delivery {
                payload: None,
                ..delivery.clone()
            },
        }))
    }

    /// A builder, for unit tests of handlers that take a `Meta`.
    pub fn builder() -> MetaBuilder {
        MetaBuilder(Parts {
            group: "test".to_owned(),
            message_id: "test-message".to_owned(),
            delivery: Delivery::new("test", "test:1"),
        })
    }

    /// The id by which the inbox knows the message.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.0.message_id
    }

    /// The handler's consumer group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// The subject that the message was published to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.delivery.subject
    }

    /// How often the message was delivered, this time included, where the broker counts. Information only.
    #[must_use]
    pub fn delivery_count(&self) -> Option<u64> {
        self.0.delivery.delivery_count
    }

    /// When the message was published, by the broker's clock.
    #[must_use]
    pub fn published_at(&self) -> Option<SystemTime> {
        self.0.delivery.published_at
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.0.delivery.headers
    }

    /// The message's key, where the broker has keys: what a message without a payload is about.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.delivery.key.as_deref()
    }

    /// Where the broker keeps the message; stable across redelivery.
    #[must_use]
    pub fn position(&self) -> &str {
        &self.0.delivery.position
    }

    /// A key for calls outside the database (a payment, an e-mail), which the inbox can't undo: the same for every run of
    /// this group on this message, another for every other. It is a UUID in its usual text form, 36 characters long.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        let mut name = Vec::with_capacity(self.group().len() + 1 + self.message_id().len());
        name.extend_from_slice(self.group().as_bytes());
        name.push(0);
        name.extend_from_slice(self.message_id().as_bytes());
        Uuid::new_v5(&KEYS, &name).to_string()
    }
}

impl FromDelivery for Meta {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(context.meta().clone())
    }
}

/// Makes a [`Meta`] for a unit test.
#[derive(Clone, Debug)]
#[must_use]
pub struct MetaBuilder(Parts);

impl MetaBuilder {
    /// Sets the message's id (default `test-message`).
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.0.message_id = id.into();
        self
    }

    /// Sets the group (default `test`).
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.0.group = group.into();
        self
    }

    /// Sets the subject (default `test`).
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.0.delivery.subject = subject.into();
        self
    }

    /// Sets the delivery count, from 1 (default: the broker doesn't count).
    pub fn delivery_count(mut self, count: u64) -> Self {
        self.0.delivery.delivery_count = Some(count);
        self
    }

    /// Sets when the message was published (default: unknown).
    pub fn published_at(mut self, at: SystemTime) -> Self {
        self.0.delivery.published_at = Some(at);
        self
    }

    /// Sets the headers (default: none).
    pub fn headers(mut self, headers: Headers) -> Self {
        self.0.delivery.headers = headers;
        self
    }

    /// Sets the position (default `test:1`).
    pub fn position(mut self, position: impl Into<String>) -> Self {
        self.0.delivery.position = position.into();
        self
    }

    /// The finished value.
    #[must_use]
    pub fn build(self) -> Meta {
        Meta(Arc::new(self.0))
    }
}
