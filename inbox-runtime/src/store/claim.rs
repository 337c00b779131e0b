//! The claim of a message: its inbox row, what tells it from another message of the same id, and the answer.

/// The inbox row of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The consumer group.
    pub group: &'a str,
    /// The message's id.
    pub message_id: &'a str,
    /// 32 bits of the subject's hash and 32 of the payload's.
    pub fingerprint: Fingerprint,
}

/// The worker's next transaction, which a commit may begin in its own round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTx<'a> {
    /// No message is prefetched.
    None,
    /// A message is prefetched whose transaction doesn't begin with a claim, or may not begin at all.
    Begin,
    /// A message is prefetched whose transaction begins with this claim.
    Claim(Claim<'a>),
}

/// What tells a message from another one that was given the same id: a hash of its subject and one of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(i64);

impl Fingerprint {
    /// Of a message that was claimed by hand, of which only the id is known. It equals every other.
    pub const UNKNOWN: Self = Self(0);

    /// The fingerprint of a message.
    #[must_use]
    pub fn of(subject: &str, payload: Option<&[u8]>) -> Self {
        let payload = payload.map_or(0, crc32fast::hash);
        let bits = u64::from(crc32fast::hash(subject.as_bytes())) << 32 | u64::from(payload);
        // 0 is UNKNOWN.
        Self(bits.max(1).cast_signed())
    }

    /// The fingerprint as the database keeps it.
    #[must_use]
    pub const fn to_i64(self) -> i64 {
        self.0
    }

    /// A fingerprint that the database kept.
    #[must_use]
    pub const fn from_i64(bits: i64) -> Self {
        Self(bits)
    }

    /// Whether both can be of messages of one subject.
    #[must_use]
    pub const fn same_subject(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32 || self.0 == 0 || other.0 == 0
    }

    /// Whether both can be of one message.
    #[must_use]
    pub const fn same(self, other: Self) -> bool {
        self.0 == other.0 || self.0 == 0 || other.0 == 0
    }
}

/// The answer to a claim.
#[must_use = "a duplicate must not be handled again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The row is ours; it exists if and only if the transaction commits.
    Fresh,
    /// The group has handled a message of this id, and this was its fingerprint.
    Duplicate(Fingerprint),
}

impl Claimed {
    /// Whether the group has handled the message before.
    #[must_use]
    pub const fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}
