//! Parses the NATS client protocol. Header blocks are not interpreted here, so no header makes a message unreadable.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;

/// The longest accepted control line, in bytes. `INFO` has the addresses of the whole cluster.
const MAX_LINE: usize = 1 << 20;

/// Messages up to this size, in bytes, are copied out of the read buffer.
const MAX_COPIED: usize = 4096;

/// One operation of the server.
#[derive(Debug)]
pub(super) enum ServerOp {
    Info(Box<ServerInfo>),
    Ping,
    Pong,
    Ok,
    /// The text of `-ERR`.
    Error(String),
    /// A message, with its subscription id (`sid`).
    Message(u64, RawMessage),
}

/// The fields of `INFO` that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServerInfo {
    pub(super) nonce: String,
    pub(super) tls_required: bool,
    /// The servers of the cluster, as `host:port`.
    pub(super) connect_urls: Vec<String>,
}

/// A message as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RawMessage {
    pub(super) subject: String,
    pub(super) reply: Option<String>,
    /// The raw header block with its first line; empty if there is none.
    pub(super) headers: Bytes,
    pub(super) payload: Bytes,
}

/// Takes the next operation out of the buffer; `None` if it is incomplete. After an error the connection can't be used.
pub(super) fn parse(buffer: &mut BytesMut) -> Result<Option<ServerOp>, String> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
        return if buffer.len() > MAX_LINE {
            Err("the server sent a line without an end".to_owned())
        } else {
            Ok(None)
        };
    };
    // Subjects needn't be UTF-8.
    let line = String::from_utf8_lossy(buffer[..end].trim_ascii_end()).into_owned();
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
    let op = match verb.to_ascii_uppercase().as_str() {
        "MSG" | "HMSG" => return parse_message(buffer, end + 1, verb.len() == 4, rest),
        "INFO" => {
            let info = serde_json::from_str(rest.trim());
            ServerOp::Info(info.map_err(|error| format!("the INFO of the server can't be parsed: {error}"))?)
        }
        "PING" => ServerOp::Ping,
        "PONG" => ServerOp::Pong,
        "+OK" => ServerOp::Ok,
        "-ERR" => ServerOp::Error(rest.trim().trim_matches('\'').to_owned()),
        _ => return Err("the server sent an unknown operation; is it a NATS server?".to_owned()),
    };
    buffer.advance(end + 1);
    Ok(Some(op))
}

/// A message whose control line has these arguments and ends at `start`.
fn parse_message(
    buffer: &mut BytesMut,
    start: usize,
    has_headers: bool,
    arguments: &str,
) -> Result<Option<ServerOp>, String> {
    let wrong = || "the server sent a message whose control line can't be parsed".to_owned();
    let mut arguments: Vec<_> = arguments.split_ascii_whitespace().collect();
    let mut number = || {
        arguments
            .pop()
            .and_then(|argument| argument.parse::<usize>().ok())
            .ok_or_else(wrong)
    };
    let total = number()?;
    let headers = if has_headers { number()? } else { 0 };
    let (subject, sid, reply) = match arguments[..] {
        [subject, sid] => (subject, sid, None),
        [subject, sid, reply] => (subject, sid, Some(reply.to_owned())),
        _ => return Err(wrong()),
    };
    let sid = sid.parse().map_err(|_| wrong())?;
    if headers > total {
        return Err(wrong());
    }
    let all = start + total + 2;
    if buffer.len() < all {
        buffer.reserve(all - buffer.len());
        return Ok(None);
    }
    let subject = subject.to_owned();
    buffer.advance(start);
    let mut payload = take_bytes(buffer, total);
    let headers = payload.split_to(headers);
    buffer.advance(2);
    let message = RawMessage {
        subject,
        reply,
        headers,
        payload,
    };
    Ok(Some(ServerOp::Message(sid, message)))
}

/// Takes bytes out of the buffer. A few are copied, so that a small message doesn't keep the whole read buffer alive.
fn take_bytes(buffer: &mut BytesMut, count: usize) -> Bytes {
    if count > MAX_COPIED {
        return buffer.split_to(count).freeze();
    }
    let copied = Bytes::copy_from_slice(&buffer[..count]);
    buffer.advance(count);
    copied
}

impl RawMessage {
    /// The status of a pull request, as `(409, "Consumer Deleted")`; `None` for deliveries.
    pub(super) fn status(&self) -> Option<(u16, String)> {
        let line = self.headers.split(|byte| *byte == b'\n').next()?;
        let line = std::str::from_utf8(line).ok()?.trim();
        let rest = line.strip_prefix("NATS/1.0")?.trim();
        let (code, description) = rest.split_once(' ').unwrap_or((rest, ""));
        Some((code.parse().ok()?, description.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_all(bytes: &[u8]) -> Result<Vec<ServerOp>, String> {
        let mut buffer = BytesMut::from(bytes);
        let mut all = Vec::new();
        while let Some(op) = parse(&mut buffer)? {
            all.push(op);
        }
        Ok(all)
    }

    fn only(bytes: &[u8]) -> RawMessage {
        match parse_all(bytes).expect("operations").pop() {
            Some(ServerOp::Message(7, message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_operation_is_parsed() {
        let info = b"INFO {\"nonce\":\"abc\",\"connect_urls\":[\"a:4222\"],\"port\":1}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'No'\r\n";
        let read = parse_all(info).expect("operations");
        assert!(matches!(&read[0], ServerOp::Info(info) if info.nonce == "abc" && info.connect_urls == ["a:4222"]));
        assert!(matches!(read[1..4], [ServerOp::Ping, ServerOp::Pong, ServerOp::Ok]));
        assert!(matches!(&read[4], ServerOp::Error(text) if text == "No"));
        assert!(parse_all(b"GET / HTTP/1.1\r\n").is_err());
        assert!(parse_all(b"MSG a 1 x\r\n").is_err());
        assert!(parse_all(b"HMSG a 1 9 3\r\nabc\r\n").is_err());
    }

    #[test]
    fn g27_malformed_headers_do_not_break_the_parser() {
        for block in [
            &b"NATS/1.0\r\na: x\ry\r\n\r\n"[..],
            b"NATS/1.0\r\nX: \xff\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"nothing of NATS",
        ] {
            let mut bytes = format!("HMSG s 7 r {} {}\r\n", block.len(), block.len() + 2).into_bytes();
            bytes.extend_from_slice(block);
            bytes.extend_from_slice(b"hi\r\n");
            let message = only(&bytes);
            assert_eq!(message.reply.as_deref(), Some("r"));
            assert_eq!((&message.headers[..], &message.payload[..]), (block, &b"hi"[..]));
        }
        assert_eq!(only(b"MSG s\xff 7 2\r\n\r\n\r\n").payload, b"\r\n"[..]);
    }

    #[test]
    fn a_status_is_parsed() {
        let message = only(b"HMSG s 7 31 31\r\nNATS/1.0 409 Consumer Deleted\r\n\r\n");
        assert_eq!(message.status(), Some((409, "Consumer Deleted".to_owned())));
        assert_eq!(only(b"MSG s 7 1\r\na\r\n").status(), None);
    }

    proptest! {
        /// However the input is split, the messages are the same.
        #[test]
        fn input_can_be_split_anywhere(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            cuts in prop::collection::vec(1_usize..20, 1..40),
        ) {
            let mut bytes = Vec::new();
            for payload in &payloads {
                bytes.extend_from_slice(format!("HMSG s 7 $JS.ACK.x 3 {}\r\nabc", payload.len() + 3).as_bytes());
                bytes.extend_from_slice(payload);
                bytes.extend_from_slice(b"\r\n");
            }
            let (mut buffer, mut read_back, mut rest) = (BytesMut::new(), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                buffer.extend_from_slice(now);
                rest = later;
                while let Some(op) = parse(&mut buffer).expect("an operation") {
                    let ServerOp::Message(7, message) = op else { panic!("{op:?}") };
                    prop_assert_eq!(&message.headers[..], b"abc");
                    read_back.push(message.payload.to_vec());
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(read_back, payloads);
        }

        #[test]
        fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_all(&bytes);
            let mut message = b"HMSG ".to_vec();
            message.extend_from_slice(&bytes);
            let _ = parse_all(&message);
        }
    }
}
