//! TLS configuration: verified, unless the peer is loopback or the caller opted out by name.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
};

use crate::config::{Certificates, Negotiation};
use crate::error::Error;

/// The two configurations a driver needs; the unverified one is used for loopback or by opt-in only.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    alpn: Vec<Vec<u8>>,
    /// The system's roots are read with the first connection that is verified: a client of loopback needs none, and
    /// there are many.
    verified: OnceLock<Arc<ClientConfig>>,
    unverified: Arc<ClientConfig>,
}

impl Tls {
    pub(super) fn new(certificates: &Certificates, negotiation: Negotiation) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let alpn: Vec<Vec<u8>> = match negotiation {
            Negotiation::Adaptive => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Negotiation::Http2Only => vec![b"h2".to_vec()],
            Negotiation::Http1Only => vec![b"http/1.1".to_vec()],
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::configuration(format!("TLS could not be set up: {e}")))?;
        let mut unverified = builder
            .clone()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
            .with_no_client_auth();
        unverified.alpn_protocols.clone_from(&alpn);
        let tls = Self { builder, alpn, verified: OnceLock::new(), unverified: Arc::new(unverified) };
        if let Certificates::Trust(ders) = certificates {
            let roots = trusted(ders)?;
            tls.verified.get_or_init(|| tls.verified_by(roots));
        }
        Ok(tls)
    }

    /// Loopback is exempt only while the caller asked for no particular roots.
    pub(super) fn config(&self, is_loopback: bool, certificates: &Certificates) -> Arc<ClientConfig> {
        match certificates {
            Certificates::DangerouslyAcceptAny => self.unverified.clone(),
            Certificates::System if is_loopback => self.unverified.clone(),
            Certificates::System | Certificates::Trust(_) => {
                self.verified.get_or_init(|| self.verified_by(of_the_system())).clone()
            }
        }
    }

    /// The same for a proxy, which speaks HTTP/1.1.
    pub(super) fn for_proxy(&self, is_loopback: bool, certificates: &Certificates) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config(is_loopback, certificates));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    fn verified_by(&self, roots: RootCertStore) -> Arc<ClientConfig> {
        let mut config = self.builder.clone().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols.clone_from(&self.alpn);
        Arc::new(config)
    }
}

/// A machine without a root store can still talk to loopback; elsewhere the handshake says what is missing.
fn of_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn trusted(ders: &[Vec<u8>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for der in ders {
        roots
            .add(CertificateDer::from(der.clone()))
            .map_err(|e| Error::configuration(format!("a trusted certificate does not parse as DER: {e}")))?;
    }
    Ok(roots)
}

/// Accepts every certificate, still checking that the peer holds its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
