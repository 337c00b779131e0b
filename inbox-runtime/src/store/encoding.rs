//! How a message's texts, times and headers are kept in columns, whatever a message contains: also a character that the
//! database's encoding lacks, a text that is too long for an index, a time beyond the database's calendar.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::rows::{AttemptKey, DeadLetterReason};
use crate::{
    delivery::Headers,
    excerpt::{excerpt, floor_char_boundary},
};

/// The longest name of a handler in a key, in bytes.
const MAX_HANDLER: usize = 512;
/// The longest position in a key, in bytes. Longer than an id, for positions that contain one.
const MAX_POSITION: usize = 768;
/// The longest message id in a key, in bytes. With a group's 128 a key then fits into an entry of PostgreSQL's B-trees, of
/// which none may be longer than 2704 bytes.
const MAX_ID: usize = 640;
/// The first and the last time that can be kept, in milliseconds since 1970: the years 1 and 9999, which every database has.
const TIME_RANGE: (i64, i64) = (-62_135_596_800_000, 253_402_300_799_999);
/// The longest delay, in milliseconds: a hundred years.
const MAX_DELAY: i64 = 100 * 365 * 24 * 3600 * 1000;

/// The characters that a database can keep in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "SQLite has every character"))]
pub(crate) enum Charset {
    /// All but NUL, which is never stored.
    Unicode,
    /// Those of ISO 8859-1.
    Latin1,
    /// Those that every encoding has.
    Ascii,
}

impl Charset {
    /// That of an encoding, as PostgreSQL names it.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn of(encoding: &str) -> Self {
        match encoding {
            // SQL_ASCII keeps whatever bytes it is given.
            "UTF8" | "SQL_ASCII" => Self::Unicode,
            "LATIN1" => Self::Latin1,
            _ => Self::Ascii,
        }
    }

    fn has(self, character: char) -> bool {
        character != '\0'
            && match self {
                Self::Unicode => true,
                Self::Latin1 => u32::from(character) < 0x100,
                Self::Ascii => character.is_ascii(),
            }
    }

    /// Whether the text can be kept unchanged.
    pub(crate) fn has_all(self, text: &str) -> bool {
        text.chars().all(|character| self.has(character))
    }

    /// The text, with `\u{20ac}` in place of a character that can't be kept, and U+FFFD in place of NUL where that can be.
    pub(crate) fn storable(self, text: &str) -> String {
        if self.has_all(text) {
            return text.to_owned();
        }
        let mut storable = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\0' if self == Self::Unicode => storable.push(char::REPLACEMENT_CHARACTER),
                _ if self.has(character) => storable.push(character),
                _ => storable.extend(character.escape_unicode()),
            }
        }
        storable
    }

    /// The text of an error, at most 8 KiB long.
    pub(crate) fn error(self, text: &str) -> String {
        let storable = excerpt(self.storable(&excerpt(text.to_owned())));
        // The note that it was cut may need escapes too.
        self.storable(&storable)
    }

    /// The text for a key: where it is longer than `max` bytes, its beginning and a hash of all of it.
    fn key(self, text: &str, max: usize) -> String {
        let mut key = self.storable(text);
        if key.len() > max {
            let hash = format!("~{:08x}{:08x}", crc32fast::hash(text.as_bytes()), text.len());
            key.truncate(floor_char_boundary(&key, max - hash.len()));
            key.push_str(&hash);
        }
        key
    }

    /// A handler's name as a key has it.
    pub(crate) fn handler(self, name: &str) -> String {
        self.key(name, MAX_HANDLER)
    }
}

/// An [`AttemptKey`] as the tables have it.
#[derive(Debug)]
pub(crate) struct StoredKey {
    pub(crate) group: String,
    pub(crate) handler: String,
    pub(crate) position: String,
    /// `None` if the message has no usable id.
    pub(crate) message_id: Option<String>,
    pub(crate) fingerprint: i64,
}

impl StoredKey {
    pub(crate) fn new(charset: Charset, key: &AttemptKey) -> Self {
        Self {
            group: charset.storable(&key.group),
            handler: charset.handler(&key.handler),
            position: charset.key(&key.position, MAX_POSITION),
            message_id: key.message_id.as_deref().map(|id| charset.key(id, MAX_ID)),
            fingerprint: key.fingerprint.to_i64(),
        }
    }

    /// The id, empty where there is none: a primary key has no nulls.
    pub(crate) fn id(&self) -> &str {
        self.message_id.as_deref().unwrap_or_default()
    }
}

/// Whole milliseconds, at most a hundred years.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(MAX_DELAY).min(MAX_DELAY)
}

/// Milliseconds since 1970; a time before the year 1 or after 9999 becomes the nearest of these.
pub(crate) fn to_millis(time: SystemTime) -> i64 {
    let millis = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |millis| -millis),
    };
    millis.clamp(TIME_RANGE.0, TIME_RANGE.1)
}

/// The time of a number of milliseconds since 1970; 1970 where `SystemTime` can't hold it.
pub(crate) fn from_millis(millis: i64) -> SystemTime {
    let distance = Duration::from_millis(millis.unsigned_abs());
    let time = if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A number of attempts as a table has it.
pub(crate) fn attempts(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The reason that a table names.
pub(crate) fn reason(text: &str) -> sqlx::Result<DeadLetterReason> {
    let found = DeadLetterReason::ALL.into_iter().find(|reason| reason.as_str() == text);
    found.ok_or_else(|| sqlx::Error::Decode(format!("unknown reason {text}").into()))
}

/// A header's value in a dead letter: readable where it is text.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum HeaderValue {
    Text(String),
    Bytes(Vec<u8>),
}

/// The headers as a dead letter has them: a JSON array of `[name, value]`, a value being text, an array of bytes where it
/// isn't UTF-8, or null.
pub(crate) fn write_headers(headers: &Headers) -> Vec<u8> {
    let value = |value: &[u8]| match std::str::from_utf8(value) {
        Ok(text) => HeaderValue::Text(text.to_owned()),
        Err(_) => HeaderValue::Bytes(value.to_vec()),
    };
    let rows: Vec<_> = headers.iter().map(|(name, bytes)| (name, bytes.map(value))).collect();
    // Strings, numbers and arrays of them can always be written.
    serde_json::to_vec(&rows).unwrap_or_default()
}

/// The inverse of [`write_headers`].
pub(crate) fn read_headers(bytes: &[u8]) -> sqlx::Result<Headers> {
    let rows: Vec<(String, Option<HeaderValue>)> =
        serde_json::from_slice(bytes).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let mut headers = Headers::new();
    for (name, value) in rows {
        match value {
            Some(HeaderValue::Text(text)) => headers.append(name, Bytes::from(text)),
            Some(HeaderValue::Bytes(bytes)) => headers.append(name, Bytes::from(bytes)),
            None => headers.append_null(name),
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::claim::Fingerprint;

    #[test]
    fn g25_a_character_that_the_encoding_lacks_is_escaped() {
        let text = "5 € für 東京 \0🦀";
        for (charset, expected) in [
            (Charset::Unicode, "5 € für 東京 \u{fffd}🦀"),
            (Charset::Latin1, r"5 \u{20ac} für \u{6771}\u{4eac} \u{0}\u{1f980}"),
            (Charset::Ascii, r"5 \u{20ac} f\u{fc}r \u{6771}\u{4eac} \u{0}\u{1f980}"),
        ] {
            assert_eq!(charset.storable(text), expected);
            assert_eq!(charset.storable(expected), expected, "escaping is idempotent");
        }
        assert_eq!(Charset::of("EUC_JP"), Charset::Ascii);
    }

    #[test]
    fn g25_a_key_fits_into_an_index_and_distinguishes_long_texts() {
        let key = |text: &str| AttemptKey {
            group: "g".repeat(128),
            handler: text.to_owned(),
            position: text.to_owned(),
            message_id: Some(text.to_owned()),
            fingerprint: Fingerprint::UNKNOWN,
        };
        for charset in [Charset::Unicode, Charset::Latin1, Charset::Ascii] {
            for character in ["a", "é", "東", "🦀"] {
                let long = character.repeat(5_000);
                let one = StoredKey::new(charset, &key(&format!("{long}1")));
                let other = StoredKey::new(charset, &key(&format!("{long}2")));
                let bytes = one.group.len() + one.handler.len() + one.position.len() + one.id().len();
                assert!(bytes <= 2_100, "{bytes} bytes");
                assert_ne!(one.position, other.position);
                assert_ne!(one.id(), other.id());
            }
        }
    }

    #[test]
    fn g25_times_and_delays_stay_within_every_calendar() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(to_millis(SystemTime::UNIX_EPOCH + year * 298_000), TIME_RANGE.1);
        assert_eq!(to_millis(SystemTime::UNIX_EPOCH - year * 298_000), TIME_RANGE.0);
        assert_eq!(
            from_millis(to_millis(SystemTime::UNIX_EPOCH + year)),
            SystemTime::UNIX_EPOCH + year
        );
        assert_eq!(millis(Duration::MAX), MAX_DELAY);
        assert_eq!(millis(Duration::from_secs(1)), 1_000);
    }
}
