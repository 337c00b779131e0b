//! TLS to the server, with a provider of our own: two that are linked into one program make rustls' default one panic.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use async_nats::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

/// The configuration of a client that trusts what the operating system trusts, and the certificates in `ca` besides.
pub(super) fn config(ca: Option<&Path>, client: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, String> {
    let ours = ca.map(certificates).transpose()?.unwrap_or_default();
    if let Some(ca) = ca.filter(|_| ours.is_empty()) {
        return Err(format!("there is no certificate in {}", ca.display()));
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier {
        provider: provider.clone(),
        ours,
        inner: OnceLock::new(),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS can't be set up: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
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

/// rustls' own verifier, made at the first server that wants TLS: most don't, and reading the system's certificates takes
/// longer than anything else at the start of a program.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// What is trusted besides.
    ours: Vec<CertificateDer<'static>>,
    inner: OnceLock<Arc<WebPkiServerVerifier>>,
}

impl Verifier {
    fn inner(&self) -> Result<&WebPkiServerVerifier, rustls::Error> {
        if let Some(inner) = self.inner.get() {
            return Ok(inner);
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(self.ours.iter().cloned());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(format!("no certificate is trusted: {error}")))?;
        Ok(self.inner.get_or_init(|| inner))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner()?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
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
    fn a_configuration_needs_no_default_provider_and_installs_none() {
        assert!(CryptoProvider::get_default().is_none());
        config(None, None).expect("a configuration");
        assert!(CryptoProvider::get_default().is_none());
    }

    #[test]
    fn what_nobody_has_signed_is_not_trusted() {
        let verifier = Verifier {
            provider: Arc::new(ring::default_provider()),
            ours: Vec::new(),
            inner: OnceLock::new(),
        };
        let name = ServerName::try_from("localhost").expect("a name");
        let nonsense = CertificateDer::from(&b"no certificate"[..]);
        assert!(
            verifier
                .verify_server_cert(&nonsense, &[], &name, &[], UnixTime::now())
                .is_err()
        );
    }
}
