//! A value as it was found, and the known name that is nearest to an unknown one.

use std::fmt;

/// A value that is not to be shown: URLs carry passwords.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A value and where it was found, for the error of whoever can't use it.
#[derive(Clone, Debug)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    /// The variable's name, or `inbox.toml:3`.
    pub(crate) place: String,
}

/// The known name that looks most like `name`.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known
        .min_by_key(|known| strsim::damerau_levenshtein(known, name))
        .unwrap_or_default()
}
