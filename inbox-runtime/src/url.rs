//! What may be shown of a URL: it may have a password in any place, also where somebody forgot to encode it.

/// The scheme, if what stands in front of the first colon is one for sure: in a URL without a scheme it can be a user.
pub(crate) fn scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_scheme && (rest.starts_with("//") || !rest.contains('@'))).then_some(scheme)
}

/// Whether the URL of a file has a login, which would be taken for a part of its path and be shown with that. The error says what is
/// wrong without repeating it.
#[cfg(any(feature = "sqlite", feature = "embedded"))]
pub(crate) fn no_login(url: &str) -> Result<(), String> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    match rest.strip_prefix("//") {
        Some(path) if path.contains('@') && !path.starts_with('/') => Err(format!(
            "the URL of a file has no user, password or host; a file whose path has an `@` is written without `//`, as in \
             {scheme}:app@home.db"
        )),
        None if url.contains('@') && !matches!(scheme, "sqlite" | "embedded") => {
            Err("the URL has no scheme; write for example sqlite:app.db".to_owned())
        }
        _ => Ok(()),
    }
}

/// A URL with only those parameters that are `known`, and the names of the others, which hold nothing secret. The error says what
/// is wrong without repeating it.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn known_parameters(url: &str, known: impl Fn(&str) -> bool) -> Result<(String, Vec<&str>), String> {
    let Some((before, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), Vec::new()));
    };
    let (mut kept, mut unknown) = (Vec::new(), Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split('=').next().unwrap_or_default();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.[]".contains(c)) {
            return Err(
                "what stands behind its `?` is no parameter; in a user or a password the signs , ? @ % # / : and & are \
                 written as %2C %3F %40 %25 %23 %2F %3A and %26"
                    .to_owned(),
            );
        }
        if known(name) {
            kept.push(parameter);
        } else {
            unknown.push(name);
        }
    }
    let mut url = before.to_owned();
    if !kept.is_empty() {
        url.push('?');
        url.push_str(&kept.join("&"));
    }
    Ok((url, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g54_a_user_is_not_taken_for_a_scheme() {
        for (url, expected) in [
            ("nats://a", Some("nats")),
            ("embedded:broker.db", Some("embedded")),
            ("localhost:5432/app", Some("localhost")),
            ("user:secret@localhost/app", None),
            ("secret", None),
            ("se cret:x", None),
            ("5ecret:x", None),
        ] {
            assert_eq!(scheme(url), expected, "{url}");
        }
    }

    #[cfg(any(feature = "sqlite", feature = "embedded"))]
    #[test]
    fn g54_a_file_has_no_login() {
        for (url, expected) in [
            ("sqlite://app.db", true),
            ("sqlite:app@home.db", true),
            ("sqlite:///home/a@b/app.db", true),
            ("app.db", true),
            ("user:secret@host/app", false),
            ("sqlite://user:secret@host/app", false),
            ("embedded://secret@host/app?keep=1h", false),
            ("embedded://user:se?cret@host", false),
        ] {
            let answer = no_login(url);
            assert_eq!(answer.is_ok(), expected, "{url}");
            let why = answer.err().unwrap_or_default();
            assert!(!why.contains("secret") && !why.contains("host/"), "{why}");
        }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    #[test]
    fn g54_only_names_of_parameters_are_repeated() {
        let known = |name: &str| name == "mode";
        let url = |text: &str| Ok((text.to_owned(), Vec::new()));
        assert_eq!(known_parameters("x:a", known), url("x:a"));
        assert_eq!(known_parameters("x:a?mode=1&mode=2", known), url("x:a?mode=1&mode=2"));
        assert_eq!(
            known_parameters("x:a?mode=1&token=secret", known),
            Ok(("x:a?mode=1".to_owned(), vec!["token"]))
        );
        let why = known_parameters("x://user:12?secret@a/b", known).expect_err("no parameter");
        assert!(!why.contains("secret") && why.contains("%3F"), "{why}");
    }
}
