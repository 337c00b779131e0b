//! Tokens for SASL OAUTHBEARER, made by a function of the user's.

use std::{
    error::Error as StdError,
    fmt,
    sync::{Arc, mpsc},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use rdkafka::client::OAuthToken;
use tokio::runtime::Handle;

use crate::error_chain::text;

/// How long making a token may take. The thread that waits for it has the group's other callbacks to serve.
const MAKE: Duration = Duration::from_secs(10);

type BoxError = Box<dyn StdError + Send + Sync>;

/// A token with which a client shows the brokers who it is, for [`Kafka::oauth_token`](crate::Kafka::oauth_token).
#[derive(Clone)]
pub struct OauthToken {
    token: String,
    principal: String,
    expires: SystemTime,
}

impl OauthToken {
    /// A token in the writing of the HTTP header `Authorization: Bearer …`, in most cases a JWT; the principal that it is
    /// for; and when it expires. A new one is asked for after 80 % of the time until then.
    #[must_use]
    pub fn new(token: impl Into<String>, principal: impl Into<String>, expires: SystemTime) -> Self {
        Self {
            token: token.into(),
            principal: principal.into(),
            expires,
        }
    }

    /// The same for a token that is good for so long from now, as `expires_in` of an OAuth answer says.
    #[must_use]
    pub fn expires_in(token: impl Into<String>, principal: impl Into<String>, lifetime: Duration) -> Self {
        // A time that can't be told is as good as none.
        let expires = SystemTime::now().checked_add(lifetime);
        Self::new(token, principal, expires.unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

/// Without the token.
impl fmt::Debug for OauthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OauthToken")
            .field("token", &"[redacted]")
            .field("principal", &self.principal)
            .field("expires", &self.expires)
            .finish()
    }
}

type Make = dyn Fn() -> BoxFuture<'static, Result<OauthToken, BoxError>> + Send + Sync;

/// The function that makes tokens.
#[derive(Clone)]
pub(super) struct Token(Arc<Make>);

impl Token {
    pub(super) fn new<F, Fut, E>(make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<OauthToken, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move || {
            let token = make();
            Box::pin(async { token.await.map_err(Into::into) })
        }))
    }
}

/// Makes tokens on the runtime of the program, for the threads of librdkafka.
pub(super) struct TokenMaker {
    token: Option<Token>,
    runtime: Option<Handle>,
}

impl TokenMaker {
    /// Makes them on that runtime, or else on the one that this is called on.
    pub(super) fn new(token: Option<&Token>, runtime: Option<&Handle>) -> Self {
        Self {
            token: token.cloned(),
            runtime: runtime.cloned().or_else(|| Handle::try_current().ok()),
        }
    }

    /// Waits for a token; blocks for ten seconds at most.
    pub(super) fn make(&self) -> Result<OAuthToken, Box<dyn StdError>> {
        let Some(Token(make)) = self.token.clone() else {
            return Err("nothing makes tokens; write `Kafka::new(…).oauth_token(…)`".into());
        };
        let Some(runtime) = &self.runtime else {
            return Err("there is no tokio runtime to make the token on".into());
        };
        let (made, wait) = mpsc::sync_channel(1);
        // What the function panics with stays in its task.
        runtime.spawn(async move {
            let _ = made.send(make().await);
        });
        let token = match wait.recv_timeout(MAKE) {
            Ok(Ok(token)) => token,
            // A null character can't be passed on.
            Ok(Err(error)) => return Err(text(&*error).replace('\0', "").into()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("`oauth_token` made none within {} s", MAKE.as_secs()).into());
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err("`oauth_token` panicked, or the runtime has ended".into());
            }
        };
        let lifetime = token.expires.duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(OAuthToken {
            token: token.token,
            principal_name: token.principal,
            lifetime_ms: i64::try_from(lifetime.as_millis())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(token: &Token) -> Result<OAuthToken, String> {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        TokenMaker::new(Some(token), Some(runtime.handle()))
            .make()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_made_with_its_lifetime() {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let token = Token::new(move || async move { Ok::<_, BoxError>(OauthToken::new("canary", "alice", expires)) });
        let made = make(&token).expect("a token");
        assert_eq!(
            (made.token.as_str(), made.principal_name.as_str(), made.lifetime_ms),
            ("canary", "alice", 1_700_000_000_123)
        );
        let shown = format!("{:?}", OauthToken::new("canary", "alice", expires));
        assert!(!shown.contains("canary") && shown.contains("alice"), "{shown}");
    }

    #[test]
    fn a_function_that_fails_or_panics_is_an_error() {
        let fails = Token::new(|| async { Err::<OauthToken, _>("the server says\0 no") });
        assert_eq!(make(&fails).err().expect("an error"), "the server says no");
        let panics = Token::new(|| async {
            if true {
                panic!("boom");
            }
            Err::<OauthToken, _>("unreachable")
        });
        assert!(make(&panics).err().expect("an error").contains("panicked"));
    }
}
