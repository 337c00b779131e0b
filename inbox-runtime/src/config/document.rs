//! The text of `inbox.toml`. Every problem is told with its file and line, and none with the line's text, which may be a secret.

use std::{ops::Range, path::Path};

use toml::{Spanned, de::DeValue};

use super::{
    setting::{Kind, Setting},
    value::nearest,
};

/// A file that is being read.
pub(super) struct Document<'a> {
    name: String,
    pub(super) text: &'a str,
    problems: &'a mut Vec<String>,
}

impl<'a> Document<'a> {
    pub(super) fn new(path: &Path, text: &'a str, problems: &'a mut Vec<String>) -> Self {
        Self {
            name: path.display().to_string(),
            text,
            problems,
        }
    }

    /// A value as the text that a variable would have; `None` if it is of another kind.
    pub(super) fn scalar(&mut self, setting: &Setting, value: &Spanned<DeValue<'_>>, place: &str) -> Option<String> {
        let text = match (setting.kind, value.get_ref()) {
            (Kind::Text | Kind::Url | Kind::Duration, DeValue::String(text)) => Some(text.trim().to_owned()),
            (Kind::Number, DeValue::Integer(number)) => number_of(number),
            (Kind::Flag, DeValue::Boolean(flag)) => Some(flag.to_string()),
            (Kind::List, DeValue::Array(words)) => words
                .iter()
                .map(|word| word.get_ref().as_str())
                .collect::<Option<Vec<_>>>()
                .map(|words| words.join(",")),
            _ => None,
        };
        let text = text.filter(|text| !text.is_empty());
        if text.is_none() {
            let key = setting.key.unwrap_or_default();
            let (kind, example) = (setting.kind.as_str(), setting.example);
            self.problem(
                place,
                &format!("`{key}` is a {kind}; write it as in `{key} = {example}`"),
            );
        }
        text
    }

    pub(super) fn unknown<'k>(&mut self, place: &str, what: &str, name: &str, known: impl Iterator<Item = &'k str>) {
        // Whoever knows the variable writes it here too.
        let plain = name.to_ascii_lowercase().replace('-', "_");
        let plain = plain.strip_prefix("inbox_").unwrap_or(&plain);
        let nearest = nearest(plain, known);
        let name = name.escape_debug();
        self.problem(place, &format!("`{name}` is not {what}; the nearest is `{nearest}`"));
    }

    pub(super) fn problem(&mut self, place: &str, problem: &str) {
        self.problems.push(format!("{place}: {problem}"));
    }

    /// File and line.
    pub(super) fn place(&self, span: &Range<usize>) -> String {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("{}:{line}", self.name)
    }
}

/// A whole number in decimal, whatever the file has it in.
pub(super) fn number_of(number: &toml::de::DeInteger<'_>) -> Option<String> {
    let number = i64::from_str_radix(&number.to_string().replace('_', ""), number.radix()).ok()?;
    Some(number.to_string())
}
