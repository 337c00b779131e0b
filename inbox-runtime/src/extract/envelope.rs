//! The bodies that omni-box's converters put around a payload.

use std::ops::Deref;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{DeliveryContext, FromDelivery, Rejection, parse_json};

/// The payload in the body that omni-box's `EnvelopeEventConverter` writes, with every field beside it.
///
/// omni-box has three converters, and the handler says which one its messages come from; nothing is guessed from what a
/// body looks like:
///
/// | converter | body | argument |
/// |---|---|---|
/// | `EnvelopeEventConverter` | `{"schema_version":…,"event_type":…,…,"payload":{…},"timestamp":…}` | `Envelope<T>` |
/// | `SchemaVersionedConverter` | `{"schema_version":…,"payload":{…}}` | [`VersionedEnvelope<T>`] |
/// | `RawEventConverter` | the payload itself | [`Json<T>`](crate::Json) |
///
/// The id comes from the headers (`event_id`, or `message_id` where a producer sets it), as for every other message.
///
/// A body of another form is rejected with the path of the field that is wrong, and so is a null one; take
/// `Option<Envelope<T>>` where that has a meaning. Fields that aren't listed here are ignored.
///
/// ```
/// use inbox_runtime::Envelope;
///
/// #[derive(serde::Deserialize)]
/// struct Order { order_id: String }
///
/// let body = r#"{"schema_version":"1.0.0","event_type":"order.created","aggregate_type":"order",
///     "aggregate_id":"00000000-0000-0000-0000-000000000008","payload":{"order_id":"1"},
///     "timestamp":"2026-11-29T13:27:41.985338+00:00"}"#;
/// let order: Envelope<Order> = serde_json::from_str(body)?;
/// assert_eq!(order.order_id, "1"); // or order.payload.order_id
/// assert_eq!(order.event_type, "order.created");
/// assert_eq!(order.trace_id, None);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// The fields are public, so that a unit test can call the handler with `Envelope { payload, ..Envelope::default() }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// The version of the payload's schema; `1.0.0` if the producer set none.
    pub schema_version: String,
    /// The event's type.
    pub event_type: String,
    /// What kind of thing the event is about.
    pub aggregate_type: String,
    /// Which one it is about: a UUID in its usual text form.
    pub aggregate_id: String,
    /// What the handler is for.
    pub payload: T,
    /// When the event was recorded, by the producer's database, as in `2026-11-29T13:27:41.985258+00:00`; without the
    /// fraction where that is zero.
    pub timestamp: String,
    /// The trace that the event belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// What belongs together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
}

/// The payload in the body that omni-box's `SchemaVersionedConverter` writes.
///
/// Which converter writes what, see [`Envelope`].
///
/// ```
/// use inbox_runtime::VersionedEnvelope;
///
/// let body = r#"{"schema_version":null,"payload":[1,2]}"#;
/// let numbers: VersionedEnvelope<Vec<u8>> = serde_json::from_str(body)?;
/// assert_eq!((numbers.schema_version, numbers.payload), (None, vec![1, 2]));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionedEnvelope<T> {
    /// The version of the payload's schema, if the producer set one.
    pub schema_version: Option<String>,
    /// What the handler is for.
    pub payload: T,
}

macro_rules! extractor {
    ($name:ident) => {
        impl<T> Deref for $name<T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.payload
            }
        }

        impl<T: DeserializeOwned + Send + 'static> FromDelivery for $name<T> {
            fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
                Option::<Self>::from_delivery(context)?.ok_or_else(|| {
                    Rejection::new(concat!(
                        "the payload is null; take `Option<",
                        stringify!($name),
                        "<_>>` to handle messages without one"
                    ))
                })
            }
        }

        impl<T: DeserializeOwned + Send + 'static> FromDelivery for Option<$name<T>> {
            fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
                let payload = context.delivery.payload.as_ref();
                payload.map(|payload| parse_json(payload)).transpose()
            }
        }
    };
}

extractor!(Envelope);
extractor!(VersionedEnvelope);

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        delivery::Delivery,
        extract::{Json, Meta, States},
    };

    /// As omni-box 0.3.1 wrote them.
    const ENVELOPE: &[u8] = br#"{"schema_version":"1.0.0","event_type":"order.created","aggregate_type":"order","aggregate_id":"00000000-0000-0000-0000-000000000008","payload":{"order_id":"1"},"timestamp":"2026-11-29T13:27:41.985338+00:00"}"#;
    const FULL: &[u8] = b"{\"schema_version\":\"2.1.0\",\"event_type\":\"order.created\",\"aggregate_type\":\"order\",\"aggregate_id\":\"00000000-0000-0000-0000-000000000007\",\"payload\":{\"a\":{\"b\":1.0,\"big\":1000000000000000},\"n\":null,\"t\":[true,1000.0],\"zeta\":1,\"\xc3\xbcn\xc3\xaf\":\"\xc3\xa9\\n\\\"\"},\"timestamp\":\"2026-11-29T13:27:41.985258+00:00\",\"trace_id\":\"00-abc-def-01\",\"correlation_id\":\"corr\",\"causation_id\":\"caus\"}";
    const VERSIONED: &[u8] = br#"{"schema_version":null,"payload":{"order_id":"1"}}"#;
    const RAW: &[u8] = br#"{"order_id":"o1"}"#;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        order_id: String,
    }

    fn extract<E: FromDelivery>(payload: Option<&'static [u8]>) -> Result<E, Rejection> {
        let mut delivery = Delivery::new("order.created", "order.created:0:7");
        delivery.payload = payload.map(bytes::Bytes::from_static);
        let (meta, states) = (Meta::builder().build(), States::default());
        E::from_delivery(&DeliveryContext::new(&delivery, &meta, &states))
    }

    fn refusal<E: FromDelivery>(payload: Option<&'static [u8]>) -> String {
        match extract::<E>(payload) {
            Ok(_) => panic!("it was taken"),
            Err(rejection) => crate::error_chain::text(&rejection),
        }
    }

    #[test]
    fn an_envelope_is_opened_with_all_that_stands_beside_the_payload() {
        let order = extract::<Envelope<Order>>(Some(ENVELOPE)).expect("an envelope");
        assert_eq!((order.order_id.as_str(), order.schema_version.as_str()), ("1", "1.0.0"));
        assert_eq!(
            (order.trace_id, order.correlation_id, order.causation_id),
            (None, None, None)
        );

        let full = extract::<Envelope<Value>>(Some(FULL)).expect("an envelope");
        assert_eq!(full.payload["\u{fc}n\u{ef}"], "\u{e9}\n\"");
        assert_eq!(full.payload["a"]["big"], 1_000_000_000_000_000_u64);
        assert_eq!(full.timestamp, "2026-11-29T13:27:41.985258+00:00");
        assert_eq!(full.aggregate_id, "00000000-0000-0000-0000-000000000007");
        assert_eq!(full.trace_id.as_deref(), Some("00-abc-def-01"));
        assert_eq!(full.causation_id.as_deref(), Some("caus"));
    }

    #[test]
    fn a_versioned_payload_is_opened() {
        let order = extract::<VersionedEnvelope<Order>>(Some(VERSIONED)).expect("an envelope");
        assert_eq!((order.order_id.as_str(), &order.schema_version), ("1", &None));
    }

    #[test]
    fn nothing_is_guessed_from_the_form_of_a_body() {
        assert!(refusal::<Envelope<Order>>(Some(RAW)).contains("missing field"));
        assert!(refusal::<Envelope<Order>>(Some(VERSIONED)).contains("schema_version"));
        assert!(refusal::<VersionedEnvelope<Order>>(Some(RAW)).contains("missing field"));
        assert!(refusal::<Json<Order>>(Some(ENVELOPE)).contains("order_id"));
        let body = extract::<Json<Value>>(Some(ENVELOPE)).expect("JSON");
        assert_eq!(body["aggregate_type"], "order", "raw is raw");
    }

    #[test]
    fn a_wrong_field_is_named_by_its_path() {
        let wrong = refusal::<VersionedEnvelope<Order>>(Some(br#"{"schema_version":"1","payload":{"order_id":1}}"#));
        assert!(wrong.contains("payload.order_id"), "{wrong}");
    }

    #[test]
    fn f67_null_has_a_meaning_where_it_is_asked_for() {
        assert!(refusal::<Envelope<Order>>(None).contains("Option<Envelope<_>>"));
        assert_eq!(extract::<Option<Envelope<Order>>>(None).expect("null"), None);
        assert_eq!(extract::<Option<VersionedEnvelope<Order>>>(None).expect("null"), None);
    }
}
