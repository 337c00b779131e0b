//! TLS to the server, with a provider of our own: two that are linked into one program make rustls' default one panic.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use async_nats::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// The configuration of a client that trusts what the operating system trusts, and the certificates in `ca` besides.
pub(super) fn config(ca: Option<&Path>, client: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, String> {
    /// Reading the system's certificates takes a while, and most programs need them once or never.
    static PLAIN: OnceLock<ClientConfig> = OnceLock::new();
    if ca.is_none() && client.is_none() {
        if let Some(plain) = PLAIN.get() {
            return Ok(plain.clone());
        }
        let plain = build(None, None)?;
        return Ok(PLAIN.get_or_init(|| plain).clone());
    }
    build(ca, client)
}

fn build(ca: Option<&Path>, client: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(ca) = ca {
        let certificates = certificates(ca)?;
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(format!("there is no certificate in {}", ca.display()));
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS can't be set up: {error}"))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = client else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| format!("the client's key in {} can't be read: {error}", key.display()))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("the client's certificate can't be used: {error}"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| format!("the certificates in {} can't be read: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let problem = config(Some(Path::new("/nowhere/ca.pem")), None).expect_err("no file");
        assert!(problem.contains("/nowhere/ca.pem"), "{problem}");
    }

    #[test]
    fn a_configuration_needs_no_default_provider() {
        assert!(async_nats::rustls::crypto::CryptoProvider::get_default().is_none());
        config(None, None).expect("a configuration");
        assert!(
            async_nats::rustls::crypto::CryptoProvider::get_default().is_none(),
            "nothing was installed"
        );
    }
}
