//! Headers between the wire and ours: those that the client library has read, those that it can't read, those to publish.

use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::{broker::BrokerError, delivery::Headers};

/// What begins a block of headers.
const VERSION: &[u8] = b"NATS/1.0";

/// The headers that the client library has read. It keeps no order among names, so they are sorted.
pub(super) fn from_map(map: Option<&HeaderMap>) -> Headers {
    let mut headers = Headers::new();
    let Some(map) = map else { return headers };
    let mut names: Vec<_> = map.iter().collect();
    names.sort_by(|(one, _), (other, _)| AsRef::<str>::as_ref(*one).cmp(other.as_ref()));
    for (name, values) in names {
        for value in values {
            headers.append(AsRef::<str>::as_ref(name), value.as_str().to_owned());
        }
    }
    headers
}

/// The headers of a message to publish.
pub(super) fn to_map(headers: &Headers) -> Result<HeaderMap, BrokerError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        let wrong = |why: &str| {
            BrokerError::Invalid(format!(
                "the header `{}` can't be sent by NATS: {why}",
                name.escape_debug()
            ))
        };
        let known: HeaderName = name
            .parse()
            .map_err(|_| wrong("its name must be visible ASCII without a colon"))?;
        let value = value.ok_or_else(|| wrong("it is null"))?;
        let value = std::str::from_utf8(value).map_err(|_| wrong("its value is not UTF-8"))?;
        let value: HeaderValue = value.parse().map_err(|_| wrong("its value has a line break"))?;
        map.append(known, value);
    }
    Ok(map)
}

/// The headers in a block as it stands on the wire, whatever is in it: nothing is refused, nothing is lost that has a name.
pub(super) fn lenient(block: &[u8]) -> Headers {
    let mut headers = Headers::new();
    for line in lines(block).skip(1) {
        if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            let name = String::from_utf8_lossy(line[..colon].trim_ascii()).into_owned();
            headers.append(name, line[colon + 1..].trim_ascii().to_vec());
        }
    }
    headers
}

/// Whether the client library can read that block. In doubt it can't: a message that is fetched in another way besides is a
/// duplicate, one that is never read cuts the connection again and again.
pub(super) fn is_readable(block: &[u8]) -> bool {
    if block.is_empty() {
        return true;
    }
    let mut lines = lines(block);
    if std::str::from_utf8(block).is_err() || lines.next() != Some(VERSION) {
        return false;
    }
    lines.filter(|line| !line.is_empty()).all(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        line.contains(&b':') && name.iter().all(u8::is_ascii_graphic)
    })
}

fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    block
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_told_from_what_cannot() {
        for (block, expected) in [
            (&b""[..], true),
            (b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n", true),
            (b"NATS/1.0\r\nid: a\r\nX: \xff\r\n\r\n", false),
            (b"NATS/1.0\r\nbad name: a\r\n\r\n", false),
            (b"NATS/1.0\r\nn\xc3\xa9: a\r\n\r\n", false),
            (b"NATS/1.0\r\nno colon\r\n\r\n", false),
            (b"NATS/1.0 404 No Messages\r\nid: a\r\n\r\n", false),
            (b"NATS/9\r\nid: a\r\n\r\n", false),
        ] {
            assert_eq!(is_readable(block), expected, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn f56_whatever_a_block_has_its_names_are_read() {
        let headers = lenient(b"NATS/1.0\r\nNats-Msg-Id: m1\r\nX: \xff\r\nbad name:  b \r\nno colon\r\n\r\n");
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(
            all,
            [
                ("Nats-Msg-Id", Some(&b"m1"[..])),
                ("X", Some(&b"\xff"[..])),
                ("bad name", Some(&b"b"[..]))
            ]
        );
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        for (name, value, expected) in [
            ("a b", &b"v"[..], "visible ASCII"),
            ("a", &b"\xff"[..], "UTF-8"),
            ("a", &b"v\r\nb: c"[..], "line break"),
        ] {
            let mut headers = Headers::new();
            headers.append(name, value.to_vec());
            let problem = to_map(&headers).expect_err(name).to_string();
            assert!(problem.contains(expected), "{problem}");
        }
        let mut headers = Headers::new();
        headers.append_null("a");
        assert!(to_map(&headers).is_err());
        headers = Headers::new();
        headers.append("b", "2");
        headers.append("a", "1");
        headers.append("a", "3");
        let back = from_map(Some(&to_map(&headers).expect("sent")));
        assert_eq!(back.get_all("a").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(back.get("b"), Some(&b"2"[..]));
    }
}
