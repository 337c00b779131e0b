//! Tokens for SASL OAUTHBEARER, from a function of the program.

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

/// How long the function may take. The waiting thread has the client's other callbacks to serve.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

type BoxError = Box<dyn StdError + Send + Sync>;

/// A token that authenticates a client to the brokers, for [`Kafka::oauth_token`](crate::Kafka::oauth_token).
#[derive(Clone)]
pub struct OauthToken {
    token: String,
    principal: String,
    expires: SystemTime,
}

impl OauthToken {
    /// A token as in the HTTP header `Authorization: Bearer …`, usually a JWT; its principal; and when it expires. A
    /// new one is requested after 80 % of the time until then.
    #[must_use]
    pub fn new(token: impl Into<String>, principal: impl Into<String>, expires: SystemTime) -> Self {
        Self {
            token: token.into(),
            principal: principal.into(),
            expires,
        }
    }

    /// The same for a token with a lifetime from now, as `expires_in` of an OAuth response says.
    #[must_use]
    pub fn expires_in(token: impl Into<String>, principal: impl Into<String>, lifetime: Duration) -> Self {
        // Beyond what `SystemTime` can hold: treated as expired.
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

type TokenFn = dyn Fn() -> BoxFuture<'static, Result<OauthToken, BoxError>> + Send + Sync;

/// The program's function that returns tokens.
#[derive(Clone)]
pub(super) struct TokenFunction(Arc<TokenFn>);

impl TokenFunction {
    pub(super) fn new<F, Fut, E>(function: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<OauthToken, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move || {
            let token = function();
            Box::pin(async { token.await.map_err(Into::into) })
        }))
    }
}

/// Runs the function on the program's tokio runtime, for librdkafka's threads.
pub(super) struct TokenSource {
    function: Option<TokenFunction>,
    runtime: Option<Handle>,
}

impl TokenSource {
    /// Uses that runtime, or else the current one.
    pub(super) fn new(function: Option<&TokenFunction>, runtime: Option<&Handle>) -> Self {
        Self {
            function: function.cloned(),
            runtime: runtime.cloned().or_else(|| Handle::try_current().ok()),
        }
    }

    /// Waits for a token; blocks for ten seconds at most.
    pub(super) fn token(&self) -> Result<OAuthToken, Box<dyn StdError>> {
        let Some(TokenFunction(function)) = self.function.clone() else {
            return Err("nothing provides tokens; write `Kafka::new(…).oauth_token(…)`".into());
        };
        let Some(runtime) = &self.runtime else {
            return Err("there is no tokio runtime to run `oauth_token` on".into());
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        // A panic of the function ends its task only.
        runtime.spawn(async move {
            let _ = sender.send(function().await);
        });
        let token = match receiver.recv_timeout(TOKEN_TIMEOUT) {
            Ok(Ok(token)) => token,
            // librdkafka takes no null characters.
            Ok(Err(error)) => return Err(text(&*error).replace('\0', "").into()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!("`oauth_token` returned no token within {} s", TOKEN_TIMEOUT.as_secs()).into());
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

    fn request(function: &TokenFunction) -> Result<OAuthToken, String> {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        TokenSource::new(Some(function), Some(runtime.handle()))
            .token()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_returned_with_its_lifetime() {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let function =
            TokenFunction::new(move || async move { Ok::<_, BoxError>(OauthToken::new("canary", "alice", expires)) });
        let token = request(&function).expect("a token");
        assert_eq!(
            (token.token.as_str(), token.principal_name.as_str(), token.lifetime_ms),
            ("canary", "alice", 1_700_000_000_123)
        );
        let shown = format!("{:?}", OauthToken::new("canary", "alice", expires));
        assert!(!shown.contains("canary") && shown.contains("alice"), "{shown}");
    }

    #[test]
    fn a_function_that_fails_or_panics_is_an_error() {
        let fails = TokenFunction::new(|| async { Err::<OauthToken, _>("the server says\0 no") });
        assert_eq!(request(&fails).err().expect("an error"), "the server says no");
        let panics = TokenFunction::new(|| async {
            if true {
                panic!("boom");
            }
            Err::<OauthToken, _>("unreachable")
        });
        assert!(request(&panics).err().expect("an error").contains("panicked"));
    }
}
