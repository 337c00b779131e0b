//! The options of a NATS URL: servers, login, TLS, prefixes and streams to create.

use std::{fmt, path::PathBuf};

use async_nats::{AuthError, ServerAddr, rustls::ClientConfig};

use super::{
    limits::{CLIENT_NAME, CONNECT_TIMEOUT, PING_INTERVAL, REQUEST_TIMEOUT},
    login::Login,
    tls,
};

/// A stream to create if it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewStream {
    pub(super) name: String,
    pub(super) subjects: Vec<String>,
}

/// How to connect, and what to create there.
#[derive(Clone, Default)]
pub(super) struct ConnectOptions {
    /// URLs without user and password.
    pub(super) servers: Vec<String>,
    pub(super) login: Login,
    pub(super) ca: Option<PathBuf>,
    pub(super) client_cert: Option<(PathBuf, PathBuf)>,
    pub(super) tls_first: bool,
    pub(super) new_streams: Vec<NewStream>,
    /// The prefix of JetStream API subjects; `$JS.API` if unset.
    pub(super) api_prefix: Option<String>,
    /// The prefix of inbox subjects; `_INBOX` if unset.
    pub(super) inbox_prefix: Option<String>,
}

/// Without secrets.
impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

const EXAMPLE: &str = "nats://127.0.0.1:4222, or nats://user:password@a:4222,b:4222?ca=/etc/ca.pem";

impl ConnectOptions {
    /// Parses a URL. The error says what to write instead and has no secrets.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| format!("the URL of NATS has no `://`; write for example {EXAMPLE}"))?;
        if !matches!(scheme, "nats" | "tls") {
            return Err(format!(
                "a URL of NATS begins with nats:// or tls://; write for example {EXAMPLE}"
            ));
        }
        let (hosts, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        check_login(hosts, parameters)?;
        let mut options = Self::default();
        for host in hosts.trim_end_matches('/').split(',') {
            options.add_host(scheme, host.trim())?;
        }
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            options.set(name, &decoded(value)?)?;
        }
        Ok(options)
    }

    fn add_host(&mut self, scheme: &str, host: &str) -> Result<(), String> {
        let host = host
            .strip_prefix("nats://")
            .or(host.strip_prefix("tls://"))
            .unwrap_or(host);
        let host = match host.rsplit_once('@') {
            None => host,
            Some((login, host)) => {
                self.login = match login.split_once(':') {
                    Some((user, password)) => Login::Password(decoded(user)?, decoded(password)?),
                    None => Login::Token(decoded(login)?),
                };
                host
            }
        };
        let server = format!("{scheme}://{host}");
        match server.parse::<ServerAddr>() {
            Ok(address) if !address.host().is_empty() => {
                self.servers.push(server);
                Ok(())
            }
            _ => Err(format!(
                "`{host}` is no host of a NATS server; write for example {EXAMPLE}"
            )),
        }
    }

    /// Sets a parameter of the URL. The error has no secrets.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let path = || Some(PathBuf::from(value)).filter(|_| !value.is_empty());
        let file = || path().ok_or_else(|| format!("the option `{name}` of NATS names no file"));
        match name {
            "credentials" => self.login = Login::Credentials(file()?),
            "nkey" => self.login = Login::Nkey(file()?),
            "ca" => self.ca = Some(file()?),
            "cert" => {
                let key = self.client_cert.take().map(|(_, key)| key).unwrap_or_default();
                self.client_cert = Some((file()?, key));
            }
            "key" => {
                let cert = self.client_cert.take().map(|(cert, _)| cert).unwrap_or_default();
                self.client_cert = Some((cert, file()?));
            }
            "tls_first" => {
                self.tls_first = value
                    .parse()
                    .map_err(|_| "write tls_first=true or tls_first=false".to_owned())?;
            }
            "create_stream" => self.new_streams.push(new_stream(value)?),
            "domain" => self.set_domain(value)?,
            "api_prefix" => self.set_api_prefix(value)?,
            "inbox_prefix" => self.set_inbox_prefix(value)?,
            _ => {
                return Err(format!(
                    "the NATS URL has an unknown parameter `{name}`; there are credentials, nkey, ca, cert, key, tls_first, \
                     create_stream, domain, api_prefix and inbox_prefix"
                ));
            }
        }
        Ok(())
    }

    /// The servers, for logs and errors.
    pub(super) fn shown(&self) -> String {
        self.servers.join(",")
    }

    /// Sets the JetStream domain, which is a part of the API prefix.
    pub(super) fn set_domain(&mut self, domain: &str) -> Result<(), String> {
        if domain.contains('.') {
            return Err(format!(
                "`{}` is no JetStream domain: it has no dot; write for example domain=hub",
                domain.escape_debug()
            ));
        }
        self.set_api_prefix(&format!("$JS.{domain}.API"))
    }

    pub(super) fn set_api_prefix(&mut self, prefix: &str) -> Result<(), String> {
        self.api_prefix = Some(checked_prefix("api_prefix", prefix, "$JS.hub.API")?);
        Ok(())
    }

    pub(super) fn set_inbox_prefix(&mut self, prefix: &str) -> Result<(), String> {
        self.inbox_prefix = Some(checked_prefix("inbox_prefix", prefix, "_INBOX_billing")?);
        Ok(())
    }

    /// The prefix of JetStream API subjects.
    pub(super) fn api_prefix(&self) -> &str {
        self.api_prefix.as_deref().unwrap_or("$JS.API")
    }

    /// A new unique inbox subject.
    pub(super) fn new_inbox(&self) -> String {
        let random = std::iter::repeat_with(fastrand::alphanumeric)
            .take(22)
            .collect::<String>();
        format!("{}.{random}", self.inbox_prefix.as_deref().unwrap_or("_INBOX"))
    }

    /// The options of the client library. Reads the files once, so that the start reports what is wrong with them.
    pub(super) fn client_options(&self) -> Result<async_nats::ConnectOptions, String> {
        self.login.auth(b"")?;
        let login = self.login.clone();
        let mut options = async_nats::ConnectOptions::with_auth_callback(move |nonce| {
            std::future::ready(login.auth(&nonce).map_err(AuthError::new))
        });
        if self.tls_first {
            options = options.tls_first();
        }
        if let Some(prefix) = &self.inbox_prefix {
            options = options.custom_inbox_prefix(prefix);
        }
        Ok(options
            .tls_client_config(self.tls()?)
            .name(CLIENT_NAME)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL))
    }

    /// The TLS configuration, for servers that require it.
    pub(super) fn tls(&self) -> Result<ClientConfig, String> {
        tls::config(self.ca.as_deref(), self.client_cert.as_ref())
    }

    /// The addresses to connect to.
    pub(super) fn addresses(&self) -> Vec<ServerAddr> {
        self.servers.iter().filter_map(|server| server.parse().ok()).collect()
    }
}

/// Checks that a prefix is one or more tokens without wildcards, and strips a trailing dot.
fn checked_prefix(name: &str, prefix: &str, example: &str) -> Result<String, String> {
    let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
    let is_token = |token: &str| {
        !token.is_empty() && !["*", ">"].contains(&token) && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if prefix.split('.').all(is_token) {
        return Ok(prefix.to_owned());
    }
    Err(format!(
        "the {name} `{}` of NATS is not one or more tokens with dots between them and without wildcards; write for example \
         {name}={example}",
        prefix.escape_debug()
    ))
}

/// Parses `NAME:subject,subject`.
fn new_stream(text: &str) -> Result<NewStream, String> {
    let wrong = || "write create_stream=ORDERS:order.* with the stream's name and its subjects".to_owned();
    let (name, subjects) = text.split_once(':').ok_or_else(wrong)?;
    let subjects: Vec<_> = subjects.split(',').map(|subject| subject.trim().to_owned()).collect();
    if name.is_empty() || subjects.iter().any(String::is_empty) {
        return Err(wrong());
    }
    Ok(NewStream {
        name: name.to_owned(),
        subjects,
    })
}

/// Checks where the login is. A reserved character of a password that isn't percent-encoded would end the login, and
/// the rest of the password would be parsed as a host or a parameter and be repeated in errors.
fn check_login(hosts: &str, parameters: &str) -> Result<(), String> {
    let logins: Vec<_> = hosts.split(',').map(|host| host.contains('@')).collect();
    let first = logins.first() == Some(&true);
    let clear = first && (logins.iter().all(|login| *login) || !logins[1..].contains(&true));
    let in_parameters = parameters
        .split('&')
        .any(|parameter| parameter.split('=').next().is_some_and(|name| name.contains('@')));
    if clear || !(logins.contains(&true) || in_parameters) {
        return Ok(());
    }
    Err(format!(
        "the URL of NATS has an `@` after something other than a user and a password; in these the characters , ? @ % # / : and & are \
         written as %2C %3F %40 %25 %23 %2F %3A and %26, and they stand at the first server or at each; write for example \
         {EXAMPLE}"
    ))
}

/// Percent-decodes a part of a URL.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("the URL of NATS has a `%` without two hex digits; write %25 for the character itself")?);
        rest = &more[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the URL of NATS has percent-encoded bytes that are no UTF-8".to_owned())
}

/// Whether retrying can't help.
pub(super) fn is_permanent(error: &async_nats::ConnectError) -> bool {
    use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse};
    matches!(error.kind(), Authentication | AuthorizationViolation | ServerParse)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn several_servers_and_a_password() {
        let options = ConnectOptions::parse("nats://us%40er:p%3Aw@a.example:4222,b.example").expect("a URL");
        assert_eq!(options.servers, ["nats://a.example:4222", "nats://b.example"]);
        assert!(matches!(&options.login, Login::Password(user, word) if user == "us@er" && word == "p:w"));
        assert!(!format!("{options:?}{}", options.shown()).contains("p:w"));
    }

    #[test]
    fn a_token_and_files() {
        let options =
            ConnectOptions::parse("tls://secret@host:4222?ca=/etc/ca.pem&cert=c.pem&key=k.pem&tls_first=true");
        let options = options.expect("a URL");
        assert_eq!(options.servers, ["tls://host:4222"]);
        assert!(matches!(&options.login, Login::Token(token) if token == "secret"));
        assert_eq!(options.ca, Some("/etc/ca.pem".into()));
        assert_eq!(options.client_cert, Some(("c.pem".into(), "k.pem".into())));
        assert!(options.tls_first);
        let login = |url| ConnectOptions::parse(url).expect("a URL").login;
        assert!(
            matches!(login("nats://h?credentials=a.creds"), Login::Credentials(path) if path == Path::new("a.creds"))
        );
        assert!(matches!(login("nats://h?nkey=a.nk"), Login::Nkey(path) if path == Path::new("a.nk")));
    }

    #[test]
    fn streams_to_create() {
        let options = ConnectOptions::parse("nats://h?create_stream=ORDERS:order.%3E,payment.*").expect("a URL");
        assert_eq!(
            options.new_streams,
            [NewStream {
                name: "ORDERS".to_owned(),
                subjects: vec!["order.>".to_owned(), "payment.*".to_owned()]
            }]
        );
    }

    #[test]
    fn g59_prefixes() {
        let prefix = |url| ConnectOptions::parse(url).expect("a URL").api_prefix().to_owned();
        assert_eq!(prefix("nats://h"), "$JS.API");
        assert_eq!(prefix("nats://h?domain=hub"), "$JS.hub.API");
        assert_eq!(prefix("nats://h?api_prefix=JS.acc.API."), "JS.acc.API");
        let inbox = |url| ConnectOptions::parse(url).expect("a URL").new_inbox();
        assert!(inbox("nats://h").starts_with("_INBOX."));
        let ours = inbox("nats://h?inbox_prefix=_INBOX_shop");
        assert!(ours.starts_with("_INBOX_shop.") && ours != inbox("nats://h?inbox_prefix=_INBOX_shop"));
    }

    #[test]
    fn errors_have_no_password() {
        for (url, expected) in [
            ("nats:h", "://"),
            ("http://h", "nats://"),
            ("nats://u:hidden@", "no host"),
            ("nats://u:hidden@h?tsl=1", "`tsl`"),
            ("nats://u:hidden%zz@h", "%25"),
            ("nats://h?create_stream=ORDERS", "create_stream=ORDERS:order.*"),
            ("nats://h?ca=", "no file"),
            ("nats://h?domain=a.b", "domain=hub"),
            ("nats://h?api_prefix=a.*", "api_prefix=$JS.hub.API"),
            ("nats://h?inbox_prefix=", "inbox_prefix=_INBOX_billing"),
        ] {
            let problem = ConnectOptions::parse(url).expect_err(url);
            assert!(problem.contains(expected), "{url}: {problem}");
            assert!(!problem.contains("hidden"), "{url}: {problem}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let options = ConnectOptions::parse("nats://h?credentials=/nowhere/a.creds").expect("a URL");
        let problem = options.client_options().expect_err("no file");
        assert!(problem.contains("/nowhere/a.creds"), "{problem}");
    }
}
