//! Which proxy a connection goes through, if any.
//!
//! A tunnel is asked for with `CONNECT`, for https and http endpoints alike: what goes through it is between driver and
//! endpoint, so that HTTP/2 and certificates work as without a proxy.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cosmos_wire::endpoint::without_user;
use http::HeaderValue;
use http::uri::{Authority, Scheme, Uri};

use crate::error::Error;
use crate::transport::Address;

/// Which proxy connections go through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// The one that the environment names: `HTTPS_PROXY` for https endpoints, `HTTP_PROXY` for http endpoints, else
    /// `ALL_PROXY`; the names in small letters come first. Hosts in `NO_PROXY` and loopback are connected to directly.
    #[default]
    Environment,
    /// None, whatever the environment says.
    Direct,
    /// This one, for every endpoint but those it excepts.
    Through(ProxyServer),
}

/// A proxy that opens tunnels with `CONNECT`. Its password is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyServer {
    address: Address,
    authorization: Option<HeaderValue>,
    except: Vec<Exception>,
}

impl ProxyServer {
    /// A proxy by its URL: `http://host:port`, `https://host:port` if it is spoken to with TLS, either with
    /// `user:password@` before the host, percent-encoded where needed.
    ///
    /// # Errors
    /// When it is no such URL.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::named(url, "the proxy")
    }

    /// Hosts that are connected to directly, as `NO_PROXY` writes them: `*`, a host, a domain with or without a leading
    /// dot (its hosts as well), an address, a block of addresses (`10.0.0.0/8`), each with or without `:port`.
    #[must_use]
    pub fn except(mut self, hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.except.extend(hosts.into_iter().filter_map(|host| Exception::parse(host.as_ref())));
        self
    }

    fn named(url: &str, name: &str) -> Result<Self, Error> {
        let bad =
            |why: &str| Error::configuration(format!("{name} is {:?}: {why}", without_user(url.trim())));
        let text = url.trim();
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = text.parse().map_err(|_| bad("not a URL; write http://host:port"))?;
        let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTP);
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(bad("only http and https proxies are known"));
        }
        let whole = uri.authority().map(Authority::as_str).unwrap_or_default();
        let (user, host) = whole.rsplit_once('@').map_or((None, whole), |(user, host)| (Some(user), host));
        let authority: Authority = host.parse().map_err(|_| bad("no host; write http://host:port"))?;
        if authority.host().is_empty() {
            return Err(bad("no host; write http://host:port"));
        }
        let authorization = match user {
            Some(user) => {
                Some(basic(user).ok_or_else(|| bad("its user or password is not percent-encoded"))?)
            }
            None => None,
        };
        Ok(Self {
            address: Address { scheme, authority, needs_http2: false },
            authorization,
            except: Vec::new(),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// What asks it for a tunnel to `host:port`.
    pub(crate) fn connect_request(&self, target: &str) -> Vec<u8> {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        request
    }

    fn serves(&self, address: &Address) -> bool {
        !self.except.iter().any(|exception| exception.covers(address.host(), address.port()))
    }
}

impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyServer")
            .field("address", &self.address.to_string())
            .field("has_credentials", &self.authorization.is_some())
            .field("except", &self.except)
            .finish()
    }
}

fn basic(user: &str) -> Option<HeaderValue> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let mut plain = percent_decoded(name)?;
    plain.push(b':');
    plain.extend(percent_decoded(password)?);
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(plain))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            plain.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            plain.push(byte);
        }
    }
    Some(plain)
}

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// In small letters, without a leading dot.
    Domain(String),
    /// Addresses that agree in so many leading bits.
    Block(IpAddr, u32),
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let whole = |hosts| Some(Self { hosts, port: None });
        match text {
            "" => return None,
            "*" => return whole(Hosts::All),
            _ => {}
        }
        if let Some((ip, bits)) = text.split_once('/')
            && let (Ok(ip), Ok(bits)) = (ip.parse(), bits.parse())
        {
            return whole(Hosts::Block(ip, bits));
        }
        let bits = |ip: &IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return whole(Hosts::Block(ip, bits(&ip)));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let hosts = match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(ip) => Hosts::Block(ip, bits(&ip)),
            Err(_) => {
                Hosts::Domain(host.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase())
            }
        };
        Some(Self { hosts, port })
    }

    fn covers(&self, host: &str, port: u16) -> bool {
        let is_port = self.port.is_none_or(|wanted| wanted == port);
        is_port
            && match &self.hosts {
                Hosts::All => true,
                Hosts::Domain(domain) => {
                    let host = host.to_ascii_lowercase();
                    host.strip_suffix(domain.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                }
                Hosts::Block(block, bits) => host.parse().is_ok_and(|ip| is_in_block(ip, *block, *bits)),
            }
    }
}

fn is_in_block(ip: IpAddr, block: IpAddr, bits: u32) -> bool {
    let agree = |left: u128, right: u128, size: u32| {
        bits == 0 || (left ^ right).checked_shr(size.saturating_sub(bits)).unwrap_or(0) == 0
    };
    match (ip, block) {
        (IpAddr::V4(ip), IpAddr::V4(block)) => agree(ip.to_bits().into(), block.to_bits().into(), 32),
        (IpAddr::V6(ip), IpAddr::V6(block)) => agree(ip.to_bits(), block.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// The proxies of one driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    https: Option<ProxyServer>,
    http: Option<ProxyServer>,
    /// The environment means other machines; who names a proxy in code means it.
    spares_loopback: bool,
}

impl Proxies {
    pub(crate) fn of(proxy: &Proxy, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        match proxy {
            Proxy::Direct => Ok(Self::default()),
            Proxy::Through(server) => {
                Ok(Self { https: Some(server.clone()), http: Some(server.clone()), spares_loopback: false })
            }
            Proxy::Environment => Self::of_environment(lookup),
        }
    }

    fn of_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let find = |names: &[&'static str]| {
            names.iter().find_map(|name| {
                lookup(name).filter(|value| !value.trim().is_empty()).map(|value| (*name, value))
            })
        };
        let (_, no_proxy) = find(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        let server = |names: &[&'static str]| match find(names) {
            Some((name, url)) => {
                ProxyServer::named(&url, name).map(|server| Some(server.except(no_proxy.split(','))))
            }
            None => Ok(None),
        };
        // A web server hands its programs the header "Proxy" of a stranger's request under this name.
        let is_web_program = lookup("REQUEST_METHOD").is_some();
        let http: &[&str] = if is_web_program {
            &["http_proxy", "all_proxy", "ALL_PROXY"]
        } else {
            &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
        };
        Ok(Self {
            https: server(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            http: server(http)?,
            spares_loopback: true,
        })
    }

    /// The proxy on the way to an endpoint.
    pub(crate) fn on_the_way_to(&self, address: &Address) -> Option<&ProxyServer> {
        if self.spares_loopback && address.is_loopback() {
            return None;
        }
        let server = if address.is_tls() { &self.https } else { &self.http };
        server.as_ref().filter(|server| server.serves(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Result<Proxies, Error> {
        Proxies::of(&Proxy::Environment, |name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn way(proxies: &Proxies, url: &str) -> Option<String> {
        let address = Address::parse(url).expect(url);
        proxies.on_the_way_to(&address).map(|server| server.address.to_string())
    }

    #[test]
    fn the_environment_names_a_proxy_by_scheme() {
        let proxies = environment(&[
            ("HTTPS_PROXY", "http://big:3128"),
            ("http_proxy", "small:80"),
            ("ALL_PROXY", "http://never:1"),
        ])
        .expect("valid");
        assert_eq!(way(&proxies, "https://a.example/").as_deref(), Some("http://big:3128"));
        assert_eq!(way(&proxies, "http://a.example/").as_deref(), Some("http://small:80"));
        assert_eq!(way(&proxies, "http://localhost:8081/"), None, "loopback is not elsewhere");
        let all = environment(&[("all_proxy", "https://all:8443")]).expect("valid");
        assert_eq!(way(&all, "https://a.example/").as_deref(), Some("https://all:8443"));
        assert_eq!(
            way(&environment(&[("HTTPS_PROXY", " ")]).expect("empty is none"), "https://a.example/"),
            None
        );
        let web = environment(&[("HTTP_PROXY", "http://evil:1"), ("REQUEST_METHOD", "GET")]).expect("valid");
        assert_eq!(way(&web, "http://a.example/"), None, "a stranger's header is no setting");
    }

    #[test]
    fn excepted_hosts_are_connected_to_directly() {
        let excepted = ["inner.example", ".corp", "10.0.0.0/8", "port.example:8443", "[::1]"];
        let server = ProxyServer::new("http://proxy:3128").expect("valid").except(excepted);
        let proxies = Proxies::of(&Proxy::Through(server), |_| None).expect("valid");
        for (url, is_direct) in [
            ("https://inner.example/", true),
            ("https://deep.INNER.example/", true),
            ("https://notinner.example/", false),
            ("https://db.corp/", true),
            ("https://10.200.3.4/", true),
            ("https://11.0.0.1/", false),
            ("https://port.example:8443/", true),
            ("https://port.example/", false),
            ("https://[::1]:9/", true),
            ("https://[::2]:9/", false),
            ("http://127.0.0.1:8081/", false),
        ] {
            assert_eq!(way(&proxies, url).is_none(), is_direct, "{url}");
        }
        let none = ProxyServer::new("http://proxy:3128").expect("valid").except(["*"]);
        let proxies = Proxies::of(&Proxy::Through(none), |_| None).expect("valid");
        assert_eq!(way(&proxies, "https://a.example/"), None);
    }

    #[test]
    fn credentials_go_to_the_proxy_and_into_no_text() {
        let server = ProxyServer::new("http://ada:s%40cret@proxy:3128").expect("valid");
        let request = String::from_utf8(server.connect_request("a.example:443")).expect("text");
        assert!(
            request.starts_with("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n"),
            "{request}"
        );
        assert!(request.contains("Proxy-Authorization: Basic YWRhOnNAY3JldA==\r\n\r\n"), "{request}");
        assert!(
            !format!("{server:?}").contains("cret") && !format!("{server:?}").contains("YWRh"),
            "{server:?}"
        );
    }

    #[test]
    fn a_wrong_proxy_is_named_without_its_password() {
        for url in [
            "socks5://me:secret@proxy:1080",
            "http://me:secret@",
            "http://me:secret@ho st:1",
            "http://%zz@proxy",
        ] {
            let error = environment(&[("HTTPS_PROXY", url)]).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(text.contains("HTTPS_PROXY") && !text.contains("secret"), "{text}");
        }
    }
}
