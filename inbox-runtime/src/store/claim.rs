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

/// A set of claims on its way to the database, in the order in which every transaction makes them: by group and id, bytewise.
/// Two transactions with claims in common so wait for each other and don't deadlock.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) struct ClaimSet<'a> {
    claims: &'a [Claim<'a>],
    answers: Vec<Claimed>,
    /// The indices of those without an answer, in the order in which they are to be made.
    open: Vec<usize>,
    /// The index of each copy, and that of the claim that it is a copy of.
    copies: Vec<(usize, usize)>,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl<'a> ClaimSet<'a> {
    pub(super) fn new(claims: &'a [Claim<'a>]) -> Self {
        let mut set = Self {
            claims,
            answers: vec![Claimed::Fresh; claims.len()],
            open: Vec::with_capacity(claims.len()),
            copies: Vec::new(),
        };
        let key = |index: usize| (claims[index].group, claims[index].message_id);
        let mut order = Vec::from_iter(0..claims.len());
        // Stable: of copies the first stays the first.
        order.sort_by_key(|index| key(*index));
        for index in order {
            match set.open.last() {
                Some(first) if key(*first) == key(index) => set.copies.push((index, *first)),
                _ => set.open.push(index),
            }
        }
        set
    }

    /// The claims without an answer, in the order in which they are to be made.
    pub(super) fn open(&self) -> impl ExactSizeIterator<Item = &'a Claim<'a>> {
        self.open.iter().map(|index| &self.claims[*index])
    }

    /// Takes the answers to the open claims, in their order. Those with `None` stay open.
    pub(super) fn answer(&mut self, answers: impl IntoIterator<Item = Option<Claimed>>) {
        let mut answers = answers.into_iter();
        self.open.retain(|index| match answers.next().flatten() {
            Some(claimed) => {
                self.answers[*index] = claimed;
                false
            }
            None => true,
        });
    }

    /// The answers in the order of the claims. A copy is a duplicate of the first.
    pub(super) fn into_answers(mut self) -> Vec<Claimed> {
        for (copy, first) in self.copies {
            self.answers[copy] = match self.answers[first] {
                Claimed::Fresh => Claimed::Duplicate(self.claims[first].fingerprint),
                kept @ Claimed::Duplicate(_) => kept,
            };
        }
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(message_id: &str, bits: i64) -> Claim<'_> {
        Claim {
            group: "billing",
            message_id,
            fingerprint: Fingerprint::from_i64(bits),
        }
    }

    #[test]
    fn a_set_is_claimed_in_the_order_of_bytes_without_its_copies() {
        let claims = [claim("é", 1), claim("b", 2), claim("B", 3), claim("b", 4)];
        let mut set = ClaimSet::new(&claims);
        let ids = |set: &ClaimSet<'_>| Vec::from_iter(set.open().map(|claim| claim.message_id.to_owned()));
        assert_eq!(ids(&set), ["B", "b", "é"]);
        let kept = Claimed::Duplicate(Fingerprint::from_i64(9));
        set.answer([Some(kept), None, Some(Claimed::Fresh)]);
        assert_eq!(ids(&set), ["b"]);
        set.answer([Some(Claimed::Fresh)]);
        let copy = Claimed::Duplicate(Fingerprint::from_i64(2));
        assert_eq!(set.into_answers()[..], [Claimed::Fresh, Claimed::Fresh, kept, copy]);
    }

    #[test]
    fn a_copy_of_a_duplicate_is_a_duplicate_of_what_was_handled() {
        let claims = [claim("a", 1), claim("a", 2)];
        let mut set = ClaimSet::new(&claims);
        let kept = Claimed::Duplicate(Fingerprint::from_i64(9));
        set.answer([Some(kept)]);
        assert_eq!(set.into_answers()[..], [kept, kept]);
    }
}
