//! The certificate of the account: given, or made at the first start.
//!
//! A made certificate is signed by an authority of its own, which clients are told to trust. The authority's key is
//! thrown away when it has signed, so nobody can make further certificates that those clients would accept.
//!
//! ```text
//! {data folder}/tls/authority.pem     what clients trust
//! {data folder}/tls/certificate.pem   what the server shows
//! {data folder}/tls/key.pem           its key, readable by the owner only
//! {data folder}/tls/names.txt         when it ends, in seconds since 1970, and the names it is for, a line each
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Config, Store, Tls};
use crate::private;

/// Names every made certificate is for.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Some systems refuse certificates that live longer than 825 days.
const LIFE: Duration = Duration::from_secs(800 * DAY);
/// A certificate with less time left than this is made anew.
const LIFE_LEFT_MIN: Duration = Duration::from_secs(30 * DAY);
const DAY: u64 = 24 * 60 * 60;
/// Protocols, the one we like best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificate the account is served with.
pub(crate) struct TlsIdentity {
    server: Arc<ServerConfig>,
    /// PEM of what clients have to trust.
    trusted: String,
}

impl TlsIdentity {
    /// The identity a configuration asks for, if any.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, TlsError> {
        let made = match (&config.tls, &config.store) {
            (Tls::Off, _) => return Ok(None),
            (Tls::Files { certificate, key }, _) => return Self::read(certificate, key).map(Some),
            (Tls::Generated { names }, Store::Memory) => Made::new(&all_names(names)?)?,
            (Tls::Generated { names }, Store::Folder { path, .. }) => {
                Made::kept(&path.join("tls"), &all_names(names)?)?
            }
        };
        let chain = parse_chain(&made.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).map_err(|error| broken(&error))?;
        Ok(Some(Self { server: server(chain, key)?, trusted: made.authority }))
    }

    fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let text = read(certificate, "certificate")?;
        let chain = parse_chain(&text).map_err(|_| {
            TlsError(format!(
                "{} holds no certificate. It must be a PEM file with a block that begins with \
                 `-----BEGIN CERTIFICATE-----`.",
                certificate.display()
            ))
        })?;
        let private = PrivateKeyDer::from_pem_slice(read(key, "private key")?.as_bytes()).map_err(|_| {
            TlsError(format!(
                "{} holds no private key. It must be a PEM file with a block that begins with \
                 `-----BEGIN PRIVATE KEY-----`, without a password.",
                key.display()
            ))
        })?;
        let server = server(chain, private).map_err(|error| {
            TlsError(format!(
                "The certificate {} and the key {} do not work together: {error}",
                certificate.display(),
                key.display()
            ))
        })?;
        Ok(Self { server, trusted: text })
    }

    /// How connections are secured.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// What clients have to trust, as PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.trusted
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays out of logs.
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

/// Why a certificate cannot be used or made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// A certificate of our making, as PEM.
struct Made {
    authority: String,
    certificate: String,
    key: String,
    /// Seconds since 1970.
    ends: u64,
}

impl Made {
    fn new(names: &[String]) -> Result<Self, TlsError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A client's clock may be a little behind ours.
        let (start, end) = (now.saturating_sub(Duration::from_secs(DAY)), now + LIFE);
        let authority_key = KeyPair::generate().map_err(|error| broken(&error))?;
        let mut authority = params(&[], "Cosmos DB emulator authority", start, end)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let trusted = authority.self_signed(&authority_key).map_err(|error| broken(&error))?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let mut leaf = params(names, "Cosmos DB emulator", start, end)?;
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let signed = leaf.signed_by(&key, &issuer).map_err(|error| broken(&error))?;
        Ok(Self {
            authority: trusted.pem(),
            certificate: signed.pem(),
            key: key.serialize_pem(),
            ends: end.as_secs(),
        })
    }

    /// The certificate in a folder, if it is for these names and good for a while; else a new one, which is kept.
    fn kept(folder: &Path, names: &[String]) -> Result<Self, TlsError> {
        if let Some(found) = Self::load(folder, names) {
            return Ok(found);
        }
        let made = Self::new(names)?;
        let failed = |error: io::Error| {
            TlsError(format!(
                "The certificate cannot be kept in {}: {error}. Change the permissions of the data folder, or name \
                 another.",
                folder.display()
            ))
        };
        // The folder above is the data folder, which is the user's to choose; this one is ours.
        folder.parent().map_or(Ok(()), private::make_folder).map_err(failed)?;
        private::make_folder_here(folder).map_err(failed)?;
        // The names come last: without them the rest does not count.
        let names_file = folder.join(NAMES_FILE);
        match fs::remove_file(&names_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        private::write(&folder.join(KEY_FILE), &made.key).map_err(failed)?;
        private::write(&folder.join(AUTHORITY_FILE), &made.authority).map_err(failed)?;
        private::write(&folder.join(CERTIFICATE_FILE), &made.certificate).map_err(failed)?;
        private::write(&names_file, &format!("{}\n{}\n", made.ends, names.join("\n"))).map_err(failed)?;
        Ok(made)
    }

    fn load(folder: &Path, names: &[String]) -> Option<Self> {
        let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let known = text(NAMES_FILE)?;
        let mut lines = known.lines();
        let ends: u64 = lines.next()?.parse().ok()?;
        let needed = SystemTime::now().duration_since(UNIX_EPOCH).ok()? + LIFE_LEFT_MIN;
        if ends < needed.as_secs() || !lines.eq(names.iter().map(String::as_str)) {
            return None;
        }
        Some(Self {
            authority: text(AUTHORITY_FILE)?,
            certificate: text(CERTIFICATE_FILE)?,
            key: text(KEY_FILE)?,
            ends,
        })
    }
}

const AUTHORITY_FILE: &str = "authority.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";
const NAMES_FILE: &str = "names.txt";

fn params(
    names: &[String],
    common_name: &str,
    start: Duration,
    end: Duration,
) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(names).map_err(|error| broken(&error))?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + start;
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
    Ok(params)
}

/// The names everybody gets, and those that were asked for.
fn all_names(asked: &[String]) -> Result<Vec<String>, TlsError> {
    let mut names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    for name in asked {
        let is_host = !name.is_empty()
            && name.len() <= 253
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'*'));
        if !is_host && name.parse::<std::net::IpAddr>().is_err() {
            return Err(TlsError(format!(
                "{name:?} is not a name for a certificate. Give a host name such as `cosmos.local` or an IP address, \
                 without scheme and port."
            )));
        }
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}

fn parse_chain(text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(TlsError("there is no certificate".to_owned())),
        Err(error) => Err(broken(&error)),
    }
}

fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(&error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| broken(&error))?;
    config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

fn read(path: &Path, what: &str) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "Check the path.",
            io::ErrorKind::PermissionDenied => "Let this user read it.",
            io::ErrorKind::InvalidData => "It must be text (PEM), not DER or PKCS #12.",
            _ => "Check the file.",
        };
        TlsError(format!("The {what} {} cannot be read: {error}. {advice}", path.display()))
    })
}

fn broken(error: &dyn fmt::Display) -> TlsError {
    TlsError(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Fsync;

    fn generated(folder: &Path, names: &[&str]) -> Result<Option<TlsIdentity>, TlsError> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        TlsIdentity::of(&Config {
            tls: Tls::Generated { names },
            ..Config::default().with_folder(folder, Fsync::Off)
        })
    }

    #[test]
    fn a_made_certificate_is_kept_until_other_names_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = generated(folder.path(), &[]).unwrap().unwrap();
        let again = generated(folder.path(), &[]).unwrap().unwrap();
        assert_eq!(first.certificate(), again.certificate());
        let other = generated(folder.path(), &["cosmos.local", "10.0.0.7"]).unwrap().unwrap();
        assert_ne!(first.certificate(), other.certificate());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_the_key() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        generated(folder.path(), &[]).unwrap();
        let mode = fs::metadata(folder.path().join("tls/key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn wrong_names_and_files_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = generated(folder.path(), &["https://x:1"]).unwrap_err().to_string();
        assert!(error.contains("without scheme and port"), "{error}");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("text"), "nothing").unwrap();
        let given = |certificate: &str, key: &str| {
            let tls = Tls::Files { certificate: path(certificate), key: path(key) };
            TlsIdentity::of(&Config { tls, ..Config::default() }).unwrap_err().to_string()
        };
        let made = Made::new(&["localhost".to_owned()]).unwrap();
        let other = Made::new(&["localhost".to_owned()]).unwrap();
        fs::write(path("cert"), made.certificate).unwrap();
        fs::write(path("key"), other.key).unwrap();
        for (certificate, key, expected) in [
            ("absent", "text", "Check the path."),
            ("text", "text", "holds no certificate"),
            ("cert", "text", "holds no private key"),
            ("cert", "absent", "The private key"),
            ("cert", "key", "do not work together"),
        ] {
            let error = given(certificate, key);
            assert!(error.contains(expected), "{certificate} {key}: {error}");
        }
    }
}
