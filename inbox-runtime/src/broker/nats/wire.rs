//! What a NATS server sends, read byte by byte: whatever a publisher has put into a header, it is a message like any other.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;

/// The longest line without a payload that is waited for, in bytes. A server's `INFO` has the addresses of its cluster.
const MAX_LINE: usize = 1 << 20;

/// Up to which size a message is copied out of the buffer, in bytes.
const MAX_COPIED: usize = 4096;

/// One thing that a server says.
#[derive(Debug)]
pub(super) enum Frame {
    Info(Box<Info>),
    Ping,
    Pong,
    /// Of no meaning here.
    Ok,
    /// The server's own words.
    Error(String),
    /// A message for a subscription, by the subscription's number.
    Message(u64, Incoming),
}

/// What a server says about itself, as far as it is of use here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Info {
    pub(super) nonce: String,
    pub(super) tls_required: bool,
    /// The other servers of the cluster, as `host:port`.
    pub(super) connect_urls: Vec<String>,
}

/// A message as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Incoming {
    pub(super) subject: String,
    pub(super) reply: Option<String>,
    /// The whole block, with its first line; empty if there is none.
    pub(super) headers: Bytes,
    pub(super) payload: Bytes,
}

/// Takes the next frame out of what has come; `None` when there is more to wait for. An error means that the two sides don't
/// understand each other any more.
pub(super) fn read(buffer: &mut BytesMut) -> Result<Option<Frame>, String> {
    let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
        return if buffer.len() > MAX_LINE {
            Err("the server sent a line without an end".to_owned())
        } else {
            Ok(None)
        };
    };
    // A subject is whatever a publisher wrote.
    let line = String::from_utf8_lossy(buffer[..end].trim_ascii_end()).into_owned();
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
    let frame = match verb.to_ascii_uppercase().as_str() {
        "MSG" | "HMSG" => return message(buffer, end + 1, verb.len() == 4, rest),
        "INFO" => {
            let info = serde_json::from_str(rest.trim());
            Frame::Info(info.map_err(|error| format!("what the server says about itself can't be read: {error}"))?)
        }
        "PING" => Frame::Ping,
        "PONG" => Frame::Pong,
        "+OK" => Frame::Ok,
        "-ERR" => Frame::Error(rest.trim().trim_matches('\'').to_owned()),
        _ => return Err("the server sent something that is no NATS".to_owned()),
    };
    buffer.advance(end + 1);
    Ok(Some(frame))
}

/// A message whose line has these words and ends at `start`.
fn message(buffer: &mut BytesMut, start: usize, has_headers: bool, words: &str) -> Result<Option<Frame>, String> {
    let wrong = || "the server sent a message whose line can't be read".to_owned();
    let mut words: Vec<_> = words.split_ascii_whitespace().collect();
    let mut number = || {
        words
            .pop()
            .and_then(|word| word.parse::<usize>().ok())
            .ok_or_else(wrong)
    };
    let total = number()?;
    let headers = if has_headers { number()? } else { 0 };
    let (subject, sid, reply) = match words[..] {
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
    // A small message is copied, so that it doesn't keep the whole buffer that it came in.
    let mut payload = if total <= MAX_COPIED {
        let copied = Bytes::copy_from_slice(&buffer[..total]);
        buffer.advance(total);
        copied
    } else {
        buffer.split_to(total).freeze()
    };
    let headers = payload.split_to(headers);
    buffer.advance(2);
    let message = Incoming {
        subject,
        reply,
        headers,
        payload,
    };
    Ok(Some(Frame::Message(sid, message)))
}

impl Incoming {
    /// What the server says about a request, as `(409, "Consumer Deleted")`; `None` if it says nothing of that kind.
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

    fn frames(bytes: &[u8]) -> Result<Vec<Frame>, String> {
        let mut buffer = BytesMut::from(bytes);
        let mut all = Vec::new();
        while let Some(frame) = read(&mut buffer)? {
            all.push(frame);
        }
        Ok(all)
    }

    fn only(bytes: &[u8]) -> Incoming {
        match frames(bytes).expect("frames").pop() {
            Some(Frame::Message(7, message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_frame_is_read() {
        let info = b"INFO {\"nonce\":\"abc\",\"connect_urls\":[\"a:4222\"],\"port\":1}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'No'\r\n";
        let read = frames(info).expect("frames");
        assert!(matches!(&read[0], Frame::Info(info) if info.nonce == "abc" && info.connect_urls == ["a:4222"]));
        assert!(matches!(read[1..4], [Frame::Ping, Frame::Pong, Frame::Ok]));
        assert!(matches!(&read[4], Frame::Error(text) if text == "No"));
        assert!(frames(b"GET / HTTP/1.1\r\n").is_err());
        assert!(frames(b"MSG a 1 x\r\n").is_err());
        assert!(frames(b"HMSG a 1 9 3\r\nabc\r\n").is_err());
    }

    #[test]
    fn g27_whatever_a_header_has_the_message_is_read() {
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
    fn what_the_server_says_about_a_request_is_its_status() {
        let message = only(b"HMSG s 7 31 31\r\nNATS/1.0 409 Consumer Deleted\r\n\r\n");
        assert_eq!(message.status(), Some((409, "Consumer Deleted".to_owned())));
        assert_eq!(only(b"MSG s 7 1\r\na\r\n").status(), None);
    }

    proptest! {
        /// However the bytes are cut, the messages are the same.
        #[test]
        fn a_stream_of_bytes_can_be_cut_anywhere(
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
                while let Some(frame) = read(&mut buffer).expect("a frame") {
                    let Frame::Message(7, message) = frame else { panic!("{frame:?}") };
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
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = frames(&bytes);
            let mut message = b"HMSG ".to_vec();
            message.extend_from_slice(&bytes);
            let _ = frames(&message);
        }
    }
}
