//! The options of NATS that the environment and `inbox.toml` set beside its URL.

use std::collections::BTreeMap;

use super::{connect_options::ConnectOptions, login::Login};
use crate::config::{Given, Secret};

/// Options by name, with where each was found.
pub(super) type GivenOptions = BTreeMap<&'static str, Given<Secret>>;

/// Each is a way to log in, of which a program has one.
const LOGINS: [&str; 4] = ["user", "token", "credentials", "nkey"];

impl ConnectOptions {
    /// Sets options, which win over those of the URL. Adds a text without secrets to `problems` for each that can't be used.
    pub(super) fn set_given(&mut self, given: &GivenOptions, problems: &mut Vec<String>) {
        if let Err(problem) = self.set_login(given) {
            problems.push(problem);
        }
        for (name, Given { value, place }) in given {
            if matches!(*name, "user" | "password" | "token") {
                continue;
            }
            if let Err(problem) = self.set(name, &value.0) {
                problems.push(format!("{place}: {problem}"));
            }
        }
    }

    fn set_login(&mut self, given: &GivenOptions) -> Result<(), String> {
        let places: Vec<_> = LOGINS
            .iter()
            .filter_map(|name| Some(given.get(name)?.place.as_str()))
            .collect();
        if places.len() > 1 {
            return Err(format!(
                "{}: these are several ways to log in to NATS; leave one of them",
                places.join(", ")
            ));
        }
        match (given.get("user"), given.get("password")) {
            (Some(user), Some(password)) => {
                self.login = Login::Password(user.value.0.clone(), password.value.0.clone());
            }
            (Some(Given { place, .. }), None) => {
                return Err(format!(
                    "{place}: a user of NATS has a password; set INBOX_NATS_PASSWORD"
                ));
            }
            (None, Some(Given { place, .. })) => {
                return Err(format!("{place}: a password of NATS has a user; set INBOX_NATS_USER"));
            }
            (None, None) => {}
        }
        if let Some(token) = given.get("token") {
            self.login = Login::Token(token.value.0.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn given(options: &[(&'static str, &str)]) -> (ConnectOptions, Vec<String>) {
        let named = |(name, value): &(&'static str, &str)| {
            let (value, place) = (Secret((*value).to_owned()), format!("the place of {name}"));
            (*name, Given { value, place })
        };
        let mut problems = Vec::new();
        let url = "nats://old:hidden@h?domain=old&ca=url.pem";
        let mut set = ConnectOptions::parse(url).expect("a URL");
        set.set_given(&options.iter().map(named).collect(), &mut problems);
        (set, problems)
    }

    #[test]
    fn they_win_over_the_url() {
        let (options, problems) = given(&[
            ("domain", "hub"),
            ("inbox_prefix", "_INBOX_shop"),
            ("cert", "c.pem"),
            ("key", "k.pem"),
            ("tls_first", "true"),
            ("user", "shop"),
            ("password", "secret"),
        ]);
        assert_eq!(problems, [""; 0]);
        assert_eq!(options.api_prefix(), "$JS.hub.API");
        assert_eq!(options.ca, Some("url.pem".into()), "what isn't set is the URL's");
        assert_eq!(options.client_cert, Some(("c.pem".into(), "k.pem".into())));
        assert!(options.tls_first && options.new_inbox().starts_with("_INBOX_shop."));
        assert!(matches!(&options.login, Login::Password(user, word) if user == "shop" && word == "secret"));
        let (options, _) = given(&[("credentials", "a.creds")]);
        assert!(matches!(&options.login, Login::Credentials(path) if path == Path::new("a.creds")));
        let (options, _) = given(&[("token", "secret")]);
        assert!(matches!(&options.login, Login::Token(token) if token == "secret"));
    }

    #[test]
    fn problems_have_their_place_and_no_secret() {
        for (options, expected) in [
            (&[("domain", "a.b")][..], "the place of domain: "),
            (
                &[("tls_first", "hidden")][..],
                "the place of tls_first: write tls_first=true",
            ),
            (
                &[("password", "hidden")][..],
                "the place of password: a password of NATS has a user",
            ),
            (&[("user", "hidden")][..], "set INBOX_NATS_PASSWORD"),
            (
                &[("token", "hidden"), ("nkey", "a.nk")][..],
                "the place of token, the place of nkey: ",
            ),
            (
                &[("user", "hidden"), ("password", "hidden"), ("token", "hidden")][..],
                "several ways",
            ),
        ] {
            let (_, problems) = given(options);
            assert_eq!(problems.len(), 1, "{options:?}: {problems:?}");
            assert!(problems[0].contains(expected), "{options:?}: {problems:?}");
            assert!(!problems[0].contains("hidden"), "{problems:?}");
        }
    }
}
