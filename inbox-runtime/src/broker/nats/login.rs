//! Authentication: from the URL, or from files that are read at each connect.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use async_nats::Auth;
use nkeys::KeyPair;

/// How the program authenticates.
#[derive(Clone, Default)]
pub(super) enum Login {
    #[default]
    None,
    Token(String),
    Password(String, String),
    /// The path of a file with the seed.
    Nkey(PathBuf),
    /// The path of a credentials file: a JWT and its seed.
    Credentials(PathBuf),
}

/// Without secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(***)",
            Self::Password(..) => "Password(***)",
            Self::Nkey(_) => "Nkey(***)",
            Self::Credentials(_) => "Credentials(***)",
        })
    }
}

impl Login {
    /// The fields of `CONNECT`, with the server's nonce signed. Reads the files, so that a rotated seed or JWT is used
    /// from the next connect on.
    pub(super) fn auth(&self, nonce: &[u8]) -> Result<Auth, String> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::Token(token) => auth.token = Some(token.clone()),
            Self::Password(user, password) => {
                auth.username = Some(user.clone());
                auth.password = Some(password.clone());
            }
            Self::Nkey(path) => {
                let seed = read(path, "the nkey seed")?;
                let key = key_pair(seed.trim(), path)?;
                auth.signature = Some(signed(&key, nonce, path)?);
                auth.nkey = Some(key.public_key());
            }
            Self::Credentials(path) => {
                let text = read(path, "the credentials")?;
                let (jwt, seed) = credentials(&text)
                    .ok_or_else(|| format!("the credentials file {} can't be read as one", path.display()))?;
                let key = key_pair(seed, path)?;
                auth.signature = Some(signed(&key, nonce, path)?);
                auth.jwt = Some(jwt.to_owned());
            }
        }
        Ok(auth)
    }
}

fn read(path: &Path, what: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{what} in {} can't be read: {error}", path.display()))
}

fn key_pair(seed: &str, path: &Path) -> Result<KeyPair, String> {
    // The library's error is dropped: it could contain a part of the seed.
    KeyPair::from_seed(seed).map_err(|_| format!("the file {} has no seed of an nkey", path.display()))
}

fn signed(key: &KeyPair, nonce: &[u8], path: &Path) -> Result<Vec<u8>, String> {
    key.sign(nonce)
        .map_err(|_| format!("the seed in {} can't sign", path.display()))
}

/// The JWT and the seed of a credentials file: the first line after each of its two headings, which are lines of dashes.
fn credentials(text: &str) -> Option<(&str, &str)> {
    let mut lines = text.lines().map(str::trim);
    let mut block = || {
        lines.find(|line| line.starts_with("---"))?;
        let content = lines.find(|line| !line.is_empty())?;
        lines.find(|line| line.starts_with("---"))?;
        (!content.starts_with("---")).then_some(content)
    };
    Some((block()?, block()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "-----BEGIN NATS USER JWT-----\neyJ0.a-b_c.d\n------END NATS USER JWT------\n\n\
        ************************* IMPORTANT *************************\nNKEYs are sensitive.\n\n\
        -----BEGIN USER NKEY SEED-----\r\nSUAX\r\n------END USER NKEY SEED------\n\n*****\n";

    #[test]
    fn a_credentials_file_has_a_jwt_and_a_seed() {
        assert_eq!(credentials(CREDENTIALS), Some(("eyJ0.a-b_c.d", "SUAX")));
        for broken in [
            "",
            "SUAX",
            "-----BEGIN-----\na\n-----END-----\n",
            "---\n---\n---\n---\n",
        ] {
            assert_eq!(credentials(broken), None, "{broken}");
        }
    }

    #[test]
    fn g35_files_are_read_at_each_connect() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("user.nk");
        let login = Login::Nkey(path.clone());
        let problem = login.auth(b"nonce").err().expect("no file");
        assert!(problem.contains("user.nk"), "{problem}");
        let mut keys = Vec::new();
        for _ in 0..2 {
            let key = KeyPair::new_user();
            fs::write(&path, format!("{}\n", key.seed().expect("a seed"))).expect("written");
            let Ok(auth) = login.auth(b"nonce") else {
                panic!("not read")
            };
            keys.push(auth.nkey.expect("a key"));
            assert_eq!(keys.last(), Some(&key.public_key()));
        }
        fs::write(&path, "SUSECRETANDBROKEN").expect("written");
        let problem = login.auth(b"nonce").err().expect("no seed");
        assert!(!problem.contains("SECRET"), "{problem}");
    }
}
