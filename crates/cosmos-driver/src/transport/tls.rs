//! TLS configuration: verified, unless the peer is loopback or the caller opted out by name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config::{Certificates, Negotiation};
use crate::error::Error;

/// The two configurations a driver needs; the unverified one is used for loopback or by opt-in only.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    verified: Arc<ClientConfig>,
    unverified: Arc<ClientConfig>,
    accept_any: bool,
}

impl Tls {
    pub(super) fn new(certificates: &Certificates, negotiation: Negotiation) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let alpn: Vec<Vec<u8>> = match negotiation {
            Negotiation::Adaptive => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Negotiation::Http2Only => vec![b"h2".to_vec()],
            Negotiation::Http1Only => vec![b"http/1.1".to_vec()],
        };
        let versions = |builder: rustls::ConfigBuilder<ClientConfig, rustls::WantsVersions>| {
            builder
                .with_safe_default_protocol_versions()
                .map_err(|e| Error::configuration(format!("TLS could not be set up: {e}")))
        };
        let mut verified = versions(ClientConfig::builder_with_provider(provider.clone()))?
            .with_root_certificates(roots(certificates)?)
            .with_no_client_auth();
        verified.alpn_protocols = alpn.clone();
        let mut unverified = versions(ClientConfig::builder_with_provider(provider.clone()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
            .with_no_client_auth();
        unverified.alpn_protocols = alpn;
        Ok(Self {
            verified: Arc::new(verified),
            unverified: Arc::new(unverified),
            accept_any: matches!(certificates, Certificates::DangerouslyAcceptAny),
        })
    }

    /// Loopback is exempt only while nobody asked for particular roots.
    pub(super) fn config(&self, is_loopback: bool, certificates: &Certificates) -> Arc<ClientConfig> {
        let exempt = is_loopback && matches!(certificates, Certificates::System);
        if self.accept_any || exempt { self.unverified.clone() } else { self.verified.clone() }
    }
}

fn roots(certificates: &Certificates) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match certificates {
        Certificates::System => {
            // A machine without a root store can still talk to loopback; elsewhere the handshake says what is missing.
            let loaded = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(loaded.certs);
        }
        Certificates::Trust(ders) => {
            for der in ders {
                roots.add(CertificateDer::from(der.clone())).map_err(|e| {
                    Error::configuration(format!("a trusted certificate does not parse as DER: {e}"))
                })?;
            }
        }
        Certificates::DangerouslyAcceptAny => {}
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
