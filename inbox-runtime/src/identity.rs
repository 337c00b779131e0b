//! Where a message's id comes from: one rule for all brokers.

use crate::{
    delivery::{Delivery, Headers},
    extract::Rejection,
    handler::IdSource,
    message_id,
};

/// The headers that carry an id by convention, in the order in which they are asked.
const HEADERS: [&str; 6] = ["message_id", "event_id", "Nats-Msg-Id", "ce-id", "ce_id", "message-id"];

/// A message's id, and whether it is only its position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) positional: bool,
}

/// The id of a delivery.
pub(crate) fn of(delivery: &Delivery, source: IdSource) -> Result<Identity, Rejection> {
    let named = match source {
        IdSource::Auto => conventional(&delivery.headers)?,
        IdSource::Header(name) => Some(header(&delivery.headers, name)?.ok_or_else(|| {
            Rejection::new(format!(
                "the header `{name}`, which is to be the message's id, is missing or blank"
            ))
        })?),
        IdSource::Json(pointer) => Some(json(delivery, pointer)?),
        IdSource::Position => None,
    };
    let positional = named.is_none();
    let id = named.unwrap_or_else(|| delivery.position.clone());
    message_id::check(&id).map_err(Rejection::new)?;
    Ok(Identity { id, positional })
}

/// The first conventional header that is there and not blank.
fn conventional(headers: &Headers) -> Result<Option<String>, Rejection> {
    for name in HEADERS {
        let Some(id) = header(headers, name)? else { continue };
        // A CloudEvent's id is unique within its source only. The length keeps two pairs from reading alike.
        let source = match name {
            "ce-id" => header(headers, "ce-source")?,
            "ce_id" => header(headers, "ce_source")?,
            _ => None,
        };
        return Ok(Some(match source {
            Some(source) => format!("{}:{source}:{id}", source.len()),
            None => id,
        }));
    }
    Ok(None)
}

/// The value of a header, `None` if it is missing or blank; given twice it must say the same twice.
fn header(headers: &Headers, name: &str) -> Result<Option<String>, Rejection> {
    let mut found: Option<&[u8]> = None;
    for value in headers
        .get_all(name)
        .filter(|value| !value.iter().all(u8::is_ascii_whitespace))
    {
        if found.is_some_and(|found| found != value) {
            return Err(Rejection::new(format!(
                "the id header `{name}` occurs more than once, with different values"
            )));
        }
        found = Some(value);
    }
    found
        .map(|value| {
            std::str::from_utf8(value)
                .map(str::to_owned)
                .map_err(|error| Rejection::with_source(format!("the id header `{name}` is not UTF-8"), error))
        })
        .transpose()
}

/// The string or integer at a JSON pointer in the payload.
fn json(delivery: &Delivery, pointer: &str) -> Result<String, Rejection> {
    let wrong = |what: &str| Rejection::new(format!("the payload has no id at `{pointer}`: {what}"));
    let payload = delivery.payload.as_deref().ok_or_else(|| wrong("it is null"))?;
    let value: serde_json::Value = serde_json::from_slice(payload).map_err(|error| {
        Rejection::with_source(format!("the payload has no id at `{pointer}`: it is not JSON"), error)
    })?;
    match value.pointer(pointer) {
        Some(serde_json::Value::String(id)) if !id.trim().is_empty() => Ok(id.clone()),
        Some(serde_json::Value::String(_)) => Err(wrong("it is blank")),
        Some(serde_json::Value::Number(id)) if !id.is_f64() => Ok(id.to_string()),
        Some(_) => Err(wrong("it is neither a string nor an integer")),
        None => Err(wrong("there is nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_id::MAX_ID;

    fn delivery(headers: &[(&str, &str)]) -> Delivery {
        let mut delivery = Delivery::new("order.created", "stream:7");
        for (name, value) in headers {
            delivery.headers.append(*name, (*value).to_owned());
        }
        delivery
    }

    fn id(headers: &[(&str, &str)]) -> String {
        of(&delivery(headers), IdSource::Auto).expect("an id").id
    }

    #[test]
    fn f27_without_a_header_the_position_is_the_id() {
        let found = of(&delivery(&[]), IdSource::Auto).expect("an id");
        assert_eq!(
            found,
            Identity {
                id: "stream:7".to_owned(),
                positional: true
            }
        );
        assert_eq!(
            of(&delivery(&[("message_id", "1")]), IdSource::Position)
                .expect("an id")
                .id,
            "stream:7"
        );
    }

    #[test]
    fn f28_a_blank_id_is_none() {
        for blank in ["", " ", "\t", "\r\n "] {
            assert_eq!(id(&[("message_id", blank)]), "stream:7", "{blank:?}");
            assert_eq!(id(&[("message_id", blank), ("event_id", "e")]), "e", "{blank:?}");
        }
        assert_eq!(id(&[("message_id", " a ")]), " a ", "never stripped");
    }

    #[test]
    fn f29_names_are_whole_and_case_does_not_matter() {
        assert_eq!(id(&[("Orig-Nats-Msg-Id", "1")]), "stream:7");
        assert_eq!(id(&[("nats-msg-id", "1")]), "1");
        assert_eq!(id(&[("NATS-MSG-ID", "1")]), "1");
    }

    #[test]
    fn f30_a_repeated_header_must_agree_with_itself() {
        assert_eq!(id(&[("event_id", "1"), ("Event_Id", "1")]), "1");
        assert_eq!(id(&[("event_id", ""), ("event_id", "1")]), "1");
        let error = of(&delivery(&[("event_id", "1"), ("event_id", "2")]), IdSource::Auto).expect_err("two ids");
        assert!(error.to_string().contains("more than once"), "{error}");
    }

    #[test]
    fn the_conventional_headers_have_an_order() {
        assert_eq!(id(&[("Nats-Msg-Id", "n"), ("event_id", "e"), ("message_id", "m")]), "m");
        assert_eq!(id(&[("Nats-Msg-Id", "n"), ("event_id", "e")]), "e");
        assert_eq!(id(&[("message-id", "d"), ("ce-id", "c")]), "c");
    }

    #[test]
    fn a_cloud_events_id_is_a_pair() {
        assert_eq!(id(&[("ce-id", "1"), ("ce-source", "/shop")]), "5:/shop:1");
        assert_eq!(id(&[("ce_id", "1"), ("ce_source", "/shop")]), "5:/shop:1");
        assert_ne!(
            id(&[("ce-id", "b"), ("ce-source", "a:")]),
            id(&[("ce-id", ":b"), ("ce-source", "a")])
        );
        assert_eq!(id(&[("ce-id", "1")]), "1");
    }

    #[test]
    fn f32_f33_what_cannot_be_stored_is_rejected() {
        let of_id = |id: String| of(&delivery(&[("message_id", &id)]), IdSource::Auto);
        assert!(of_id("a\0b".to_owned()).is_err());
        assert!(of_id("a".repeat(MAX_ID)).is_ok());
        let error = of_id("é".repeat(MAX_ID / 2 + 1)).expect_err("too long");
        assert!(error.to_string().contains("514 bytes"), "{error}");
        let mut raw = delivery(&[]);
        raw.headers.append("message_id", &b"\xff"[..]);
        assert!(of(&raw, IdSource::Auto).is_err());
    }

    #[test]
    fn an_id_can_come_from_the_payload() {
        let mut delivery = delivery(&[("message_id", "m")]);
        delivery.payload = Some(r#"{"order":{"id":"o1","n":12,"f":1.5,"b":" "}}"#.into());
        let id = |pointer| of(&delivery, IdSource::Json(pointer)).map(|found| found.id);
        assert_eq!(id("/order/id").expect("an id"), "o1");
        assert_eq!(id("/order/n").expect("an id"), "12");
        for wrong in ["/order/f", "/order/b", "/order/none", "/order"] {
            assert!(id(wrong).is_err(), "{wrong}");
        }
        delivery.payload = None;
        assert!(of(&delivery, IdSource::Json("/order/id")).is_err());
    }

    #[test]
    fn a_header_that_was_asked_for_must_be_there() {
        assert_eq!(
            of(&delivery(&[("id", "1")]), IdSource::Header("id")).expect("an id").id,
            "1"
        );
        assert!(of(&delivery(&[("message_id", "1")]), IdSource::Header("id")).is_err());
    }
}
