//! The bound on texts that aren't ours: errors of handlers, brokers and databases in logs, tables and health.

/// The longest text that is logged, stored or shown, in bytes, what is said about the cut included.
pub(crate) const MAX_TEXT: usize = 8 * 1024;

/// The text if it is at most [`MAX_TEXT`] bytes long, else its beginning and how long it was: an error may carry a whole
/// payload.
pub(crate) fn excerpt(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let cut = format!("… (cut: {} bytes in all)", grouped(text.len()));
        text.truncate(floor_char_boundary(&text, MAX_TEXT - cut.len()));
        text.push_str(&cut);
    }
    text
}

/// The largest index of a character that is not above `index`.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len()))
        .rev()
        .find(|&index| text.is_char_boundary(index))
        .unwrap_or_default()
}

/// A number with its digits in groups of three.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g48_a_long_text_is_cut_at_a_character_and_says_so() {
        for (text, bytes) in [
            ("a", "3,145,728"),
            ("é", "3,145,728"),
            ("東", "3,145,728"),
            ("🦀", "3,145,728"),
        ] {
            let cut = excerpt(text.repeat(3 * 1024 * 1024 / text.len()));
            assert!(cut.len() <= MAX_TEXT && cut.len() > MAX_TEXT - 8, "{}", cut.len());
            assert!(
                cut.ends_with(&format!("{text}… (cut: {bytes} bytes in all)")),
                "{}",
                &cut[cut.len() - 40..]
            );
            assert_eq!(excerpt(cut.clone()), cut, "it is cut once");
        }
    }

    #[test]
    fn g48_a_text_within_the_bound_stays_as_it_is() {
        for text in [String::new(), "a".repeat(MAX_TEXT)] {
            assert_eq!(excerpt(text.clone()), text);
        }
        assert_eq!(
            ["1", "999", "1,000", "12,345,678"],
            [1, 999, 1_000, 12_345_678].map(grouped).as_slice()
        );
    }
}
