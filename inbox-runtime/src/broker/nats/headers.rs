//! Converts headers: from the raw block of a delivery, and to the client library's map for a publish.

use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::{broker::BrokerError, delivery::Headers};

/// The headers of a message to publish.
pub(super) fn to_header_map(headers: &Headers) -> Result<HeaderMap, BrokerError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        let wrong = |why: &str| BrokerError::Refused {
            message: format!("the header `{}` can't be sent by NATS: {why}", name.escape_debug()),
            source: None,
        };
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| wrong("its name must be visible ASCII without a colon"))?;
        let value = value.ok_or_else(|| wrong("it is null"))?;
        let value = std::str::from_utf8(value).map_err(|_| wrong("its value is not UTF-8"))?;
        let value: HeaderValue = value.parse().map_err(|_| wrong("its value has a line break"))?;
        map.append(parsed, value);
    }
    Ok(map)
}

/// Parses a raw header block leniently: every line with a name is kept, invalid ones included. A line that begins with
/// a space continues the value before it.
pub(super) fn parse_block(block: &[u8]) -> Headers {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for line in lines(block).skip(1) {
        match (line.first(), all.last_mut()) {
            (Some(b' ' | b'\t'), Some((_, value))) => value.extend_from_slice(line),
            _ => {
                if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                    let name = String::from_utf8_lossy(line[..colon].trim_ascii()).into_owned();
                    all.push((name, line[colon + 1..].to_vec()));
                }
            }
        }
    }
    let mut headers = Headers::new();
    for (name, value) in all {
        headers.append(name, value.trim_ascii().to_vec());
    }
    headers
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
    fn f56_malformed_headers_are_kept() {
        let headers = parse_block(
            b"NATS/1.0\r\nNats-Msg-Id: m1\r\nX: \xff\r\nbad name:  b \r\nno colon\r\nY: 1\r2\r\nZ: a\r\n b\r\n\r\n",
        );
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(
            all,
            [
                ("Nats-Msg-Id", Some(&b"m1"[..])),
                ("X", Some(&b"\xff"[..])),
                ("bad name", Some(&b"b"[..])),
                ("Y", Some(&b"1\r2"[..])),
                ("Z", Some(&b"a b"[..]))
            ]
        );
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused() {
        for (name, value, expected) in [
            ("a b", &b"v"[..], "visible ASCII"),
            ("a", &b"\xff"[..], "UTF-8"),
            ("a", &b"v\r\nb: c"[..], "line break"),
        ] {
            let mut headers = Headers::new();
            headers.append(name, value.to_vec());
            let problem = to_header_map(&headers).expect_err(name).to_string();
            assert!(problem.contains(expected), "{problem}");
        }
        let mut headers = Headers::new();
        headers.append_null("a");
        assert!(to_header_map(&headers).is_err());
        headers = Headers::new();
        headers.append("b", "2");
        headers.append("a", "1");
        headers.append("a", "3");
        let sent = to_header_map(&headers).expect("sent");
        assert_eq!(
            sent.get_all("a").map(HeaderValue::as_str).collect::<Vec<_>>(),
            ["1", "3"]
        );
        assert_eq!(sent.get("b").map(HeaderValue::as_str), Some("2"));
    }
}
