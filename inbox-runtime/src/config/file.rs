//! Reads `inbox.toml`. Every problem is told with its file and line, and none with the line's text, which may be a secret.

use std::{ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Config, Given, Kind, Secret, Setting, nearest, settings};

/// Reads the file into `config`. One that isn't `wanted` may be missing.
pub(super) fn read(path: &Path, wanted: bool, config: &mut Config, problems: &mut Vec<String>) {
    match std::fs::read_to_string(path) {
        Ok(text) => File::new(path, &text, problems).read(config),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !wanted => {}
        Err(error) => problems.push(format!(
            "the file {} with settings can't be read: {error}; look at INBOX_CONFIG and `.config_file(…)`",
            path.display()
        )),
    }
}

/// A file that is being read.
pub(super) struct File<'a> {
    name: String,
    text: &'a str,
    problems: &'a mut Vec<String>,
}

impl<'a> File<'a> {
    pub(super) fn new(path: &Path, text: &'a str, problems: &'a mut Vec<String>) -> Self {
        Self {
            name: path.display().to_string(),
            text,
            problems,
        }
    }

    pub(super) fn read(mut self, config: &mut Config) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            // Not its `Display`, which shows the line.
            let place = self.place(&error.span().unwrap_or_default());
            self.problem(&place, error.message());
        }
        if !errors.is_empty() {
            return;
        }
        for (key, value) in table.into_inner() {
            let place = self.place(&key.span());
            let name = key.get_ref().as_ref();
            let row = settings::ROWS.iter().find(|row| row.setting.key == Some(name));
            if let Some(row) = row {
                if let Some(text) = self.scalar(&row.setting, &value, &place)
                    && let Err(problem) = (row.set)(config, &text, &place)
                {
                    self.problem(&place, &format!("`{name}` ({}): {problem}", row.setting.meaning));
                }
            } else if name == "handlers" {
                self.handlers(value, &place, config);
            } else if name == "kafka" {
                self.kafka(value, &place, config);
            } else {
                let known = settings::ROWS.iter().filter_map(|row| row.setting.key);
                self.unknown(&place, "a setting", name, known.chain(["handlers", "kafka"]));
            }
        }
    }

    /// The tables behind `handlers`.
    fn handlers(&mut self, value: Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
        let DeValue::Table(handlers) = value.into_inner() else {
            return self.problem(place, "`handlers` is a table; write `[handlers.\"billing\"]`");
        };
        for (key, value) in handlers {
            let place = self.place(&key.span());
            match value.into_inner() {
                DeValue::Table(table) => config.overrides.read(self, key.into_inner(), &place, table),
                _ => self.problem(
                    &place,
                    &format!(
                        "what is said of a handler is a table; write `[handlers.\"{}\"]`",
                        key.get_ref()
                    ),
                ),
            }
        }
    }

    /// The table behind `kafka`.
    fn kafka(&mut self, value: Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
        let DeValue::Table(properties) = value.into_inner() else {
            return self.problem(place, "`kafka` is a table of librdkafka's properties; write `[kafka]`");
        };
        for (name, value) in properties {
            let place = self.place(&name.span());
            let text = match value.get_ref() {
                DeValue::String(text) => Some(text.trim().to_owned()),
                DeValue::Integer(number) => number_of(number),
                DeValue::Boolean(flag) => Some(flag.to_string()),
                _ => None,
            };
            let name = name.into_inner();
            match text {
                Some(text) => {
                    let value = Secret(text);
                    config.kafka.insert(name.into_owned(), Given { value, place });
                }
                None => self.problem(
                    &place,
                    &format!(
                        "the value of `{}` is neither text, a whole number nor a flag; write the whole name in quotes, as in \
                         `\"session.timeout.ms\" = 10000`",
                        name.escape_debug()
                    ),
                ),
            }
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
