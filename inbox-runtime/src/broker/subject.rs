//! Subjects: which messages a pattern takes, and whether two patterns can take the same one.

/// Whether `pattern` takes messages of `subject`.
#[cfg(any(feature = "embedded", feature = "kafka", test))]
pub(crate) fn matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            (_, None) => return false,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// Whether there is a subject that both patterns take.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut ones, mut others) = (one.split('.'), other.split('.'));
    loop {
        match (ones.next(), others.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wildcards_stand_for_one_token_or_for_the_rest() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("*.b", "a.b", true),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} on {subject}");
        }
    }

    #[test]
    fn patterns_overlap_where_one_subject_fits_both() {
        for (one, other, expected) in [
            ("orders.*", "orders.created", true),
            ("a.>", "a.*.c", true),
            ("a.>", "a", false),
            ("a.*", "*.b", true),
            ("a.*.c", "a.b", false),
            ("a.b", "a.c", false),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} and {other}");
            assert_eq!(overlap(other, one), expected, "{other} and {one}");
        }
    }

    fn token() -> impl Strategy<Value = String> {
        prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just("*".to_owned())]
    }

    fn pattern() -> impl Strategy<Value = String> {
        (prop::collection::vec(token(), 1..4), any::<bool>()).prop_map(|(mut tokens, rest)| {
            if rest {
                tokens.push(">".to_owned());
            }
            tokens.join(".")
        })
    }

    /// Every subject of up to five tokens over the alphabet of [`token`].
    fn subjects() -> Vec<String> {
        let mut all = vec!["a".to_owned(), "b".to_owned()];
        let mut longest = all.clone();
        for _ in 0..4 {
            longest = longest
                .iter()
                .flat_map(|s| [format!("{s}.a"), format!("{s}.b")])
                .collect();
            all.extend(longest.iter().cloned());
        }
        all
    }

    proptest! {
        #[test]
        fn overlap_is_the_existence_of_a_common_subject(one in pattern(), other in pattern()) {
            let common = subjects().iter().any(|s| matches(&one, s) && matches(&other, s));
            prop_assert_eq!(overlap(&one, &other), common);
        }
    }
}
