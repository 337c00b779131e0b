//! The TLS configuration, with an explicit crypto provider: rustls' default panics when two are linked into a program.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use async_nats::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        ResolvesClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};

/// A client that trusts the operating system's certificates and those in `ca`. The files are read here, so that the start
/// reports what is wrong with them, and again at each handshake, so that rotated certificates are used from the next connect
/// on.
pub(super) fn config(ca: Option<&Path>, client: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    if let Some(ca) = ca {
        ca_certificates(ca)?;
    }
    let verifier = Verifier {
        provider: provider.clone(),
        ca: ca.map(Path::to_owned),
        system: OnceLock::new(),
    };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS can't be set up: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some((certificate, key)) = client else {
        return Ok(builder.with_no_client_auth());
    };
    let identity = ClientIdentity {
        provider,
        certificate: certificate.clone(),
        key: key.clone(),
    };
    identity.read()?;
    Ok(builder.with_client_cert_resolver(Arc::new(identity)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| format!("the certificates in {} can't be read: {error}", path.display()))
}

/// The CA certificates in a file, at least one.
fn ca_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = certificates(path)?;
    if all.is_empty() {
        return Err(format!("there is no certificate in {}", path.display()));
    }
    Ok(all)
}

/// The client's certificate and key.
#[derive(Debug)]
struct ClientIdentity {
    provider: Arc<CryptoProvider>,
    certificate: PathBuf,
    key: PathBuf,
}

impl ClientIdentity {
    fn read(&self) -> Result<CertifiedKey, String> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| format!("the client's key in {} can't be read: {error}", self.key.display()))?;
        CertifiedKey::from_der(chain, key, &self.provider)
            .map_err(|error| format!("the client's certificate can't be used: {error}"))
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // The server then reports that one is required.
        self.read()
            .inspect_err(|error| tracing::warn!(error, "the client certificate is not sent to the NATS server"))
            .ok()
            .map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// rustls' verifier, built at the handshake: most servers use no TLS, and loading the system's certificates is slow, so
/// it is done once.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Trusted in addition to the system's certificates.
    ca: Option<PathBuf>,
    system: OnceLock<Vec<CertificateDer<'static>>>,
}

impl Verifier {
    fn inner(&self) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let system = self
            .system
            .get_or_init(|| rustls_native_certs::load_native_certs().certs);
        let added = match &self.ca {
            Some(ca) => ca_certificates(ca).map_err(rustls::Error::General)?,
            None => Vec::new(),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(system.iter().cloned().chain(added));
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(format!("no certificate is trusted: {error}")))
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
    fn an_invalid_certificate_is_not_trusted() {
        let verifier = Verifier {
            provider: Arc::new(ring::default_provider()),
            ca: None,
            system: OnceLock::new(),
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
