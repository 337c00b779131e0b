//! Reads `inbox.toml`.

use std::path::Path;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    document::{Document, number_of},
    setting::nats_options,
    settings,
    value::{Given, Secret},
    values::Config,
};

/// Reads the file into `config`. One that isn't `wanted` may be missing.
pub(super) fn read(path: &Path, wanted: bool, config: &mut Config, problems: &mut Vec<String>) {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(Document::new(path, &text, problems), config),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !wanted => {}
        Err(error) => problems.push(format!(
            "the file {} with settings can't be read: {error}; look at INBOX_CONFIG and `.config_file(…)`",
            path.display()
        )),
    }
}

/// Reads every table and key of the file.
fn parse(mut document: Document<'_>, config: &mut Config) {
    let (table, errors) = DeTable::parse_recoverable(document.text);
    for error in &errors {
        // Not its `Display`, which shows the line.
        let place = document.place(&error.span().unwrap_or_default());
        document.problem(&place, error.message());
    }
    if !errors.is_empty() {
        return;
    }
    for (key, value) in table.into_inner() {
        let place = document.place(&key.span());
        match key.get_ref().as_ref() {
            "handlers" => handlers(&mut document, value, &place, config),
            "nats" => nats(&mut document, value, &place, config),
            "kafka" => kafka(&mut document, value, &place, config),
            name => one(&mut document, name, &value, &place, config),
        }
    }
}

/// A setting that has one value.
fn one(document: &mut Document<'_>, name: &str, value: &Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
    let Some(row) = settings::ROWS.iter().find(|row| row.setting.key == Some(name)) else {
        let known = settings::ROWS.iter().filter_map(|row| row.setting.key);
        return document.unknown(place, "a setting", name, known.chain(["handlers", "kafka", "nats"]));
    };
    if let Some(text) = document.scalar(&row.setting, value, place)
        && let Err(problem) = (row.set)(config, &text, place)
    {
        document.problem(place, &format!("`{name}` ({}): {problem}", row.setting.meaning));
    }
}

/// The tables behind `handlers`.
fn handlers(document: &mut Document<'_>, value: Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
    let DeValue::Table(handlers) = value.into_inner() else {
        return document.problem(place, "`handlers` is a table; write `[handlers.\"billing\"]`");
    };
    for (key, value) in handlers {
        let place = document.place(&key.span());
        match value.into_inner() {
            DeValue::Table(table) => config.overrides.read(document, key.into_inner(), &place, table),
            _ => document.problem(
                &place,
                &format!(
                    "what is said of a handler is a table; write `[handlers.\"{}\"]`",
                    key.get_ref()
                ),
            ),
        }
    }
}

/// The table behind `nats`.
fn nats(document: &mut Document<'_>, value: Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
    let DeValue::Table(table) = value.into_inner() else {
        return document.problem(place, "`nats` is a table; write `[nats]`");
    };
    for (key, value) in table {
        let place = document.place(&key.span());
        let name = key.get_ref().as_ref();
        let Some((name, setting)) = nats_options().find(|(known, _)| *known == name) else {
            let known = nats_options().map(|(name, _)| name);
            document.unknown(&place, "an option of [nats]", name, known);
            continue;
        };
        if let Some(text) = document.scalar(setting, &value, &place) {
            let value = Secret(text);
            config.nats.insert(name, Given { value, place });
        }
    }
}

/// The table behind `kafka`.
fn kafka(document: &mut Document<'_>, value: Spanned<DeValue<'_>>, place: &str, config: &mut Config) {
    let DeValue::Table(properties) = value.into_inner() else {
        return document.problem(place, "`kafka` is a table of librdkafka's properties; write `[kafka]`");
    };
    for (name, value) in properties {
        let place = document.place(&name.span());
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
            None => document.problem(
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
