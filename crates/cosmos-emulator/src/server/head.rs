//! The head of a request: as HTTP/1.1 sent it, or as a library took it apart.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};

/// Who asks for what.
#[derive(Debug)]
pub(crate) struct Head {
    form: Form,
    /// Whether it came through TLS.
    pub(crate) is_secure: bool,
}

#[derive(Debug)]
enum Form {
    Text(Text),
    Parts(Box<Parts>),
}

impl Head {
    pub(crate) fn of_parts(parts: Parts, is_secure: bool) -> Self {
        Self { form: Form::Parts(Box::new(parts)), is_secure }
    }

    pub(super) fn of_text(text: Text, is_secure: bool) -> Self {
        Self { form: Form::Text(text), is_secure }
    }

    pub(crate) fn method(&self) -> &Method {
        match &self.form {
            Form::Text(text) => &text.method,
            Form::Parts(parts) => &parts.method,
        }
    }

    /// Percent-encoded, without the query.
    pub(crate) fn path(&self) -> &str {
        self.target().split('?').next().unwrap_or_default()
    }

    /// Percent-encoded, with the query.
    pub(crate) fn target(&self) -> &str {
        match &self.form {
            Form::Text(text) => text.target(),
            Form::Parts(parts) => parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str),
        }
    }

    /// The host the client thinks it speaks to.
    pub(crate) fn host(&self) -> Option<&str> {
        match (self.fields().get(http::header::HOST), &self.form) {
            (Some(host), _) => std::str::from_utf8(host).ok(),
            (None, Form::Parts(parts)) => Some(parts.uri.authority()?.as_str()),
            (None, Form::Text(_)) => None,
        }
    }

    /// Every host that the request names, in its headers and in its target. What is no text is the empty one.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        let target = match &self.form {
            Form::Text(_) => None,
            Form::Parts(parts) => parts.uri.authority().map(http::uri::Authority::as_str),
        };
        let header = self.fields().get(http::header::HOST);
        header.map(|host| std::str::from_utf8(host).unwrap_or_default()).into_iter().chain(target)
    }

    /// What this server itself added to the request.
    pub(crate) fn note<T: Send + Sync + 'static>(&self) -> Option<&T> {
        match &self.form {
            Form::Text(_) => None,
            Form::Parts(parts) => parts.extensions.get(),
        }
    }

    pub(crate) fn fields(&self) -> Fields<'_> {
        match &self.form {
            Form::Text(text) => Fields::Text(text),
            Form::Parts(parts) => Fields::Map(&parts.headers),
        }
    }
}

/// The headers of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fields<'a> {
    Text(&'a Text),
    Map(&'a HeaderMap),
}

impl<'a> Fields<'a> {
    /// The value of a header; the first, where there are several.
    pub(crate) fn get(self, name: HeaderName) -> Option<&'a [u8]> {
        match self {
            Self::Text(text) => text.get(name.as_str().as_bytes()),
            Self::Map(map) => map.get(name).map(http::HeaderValue::as_bytes),
        }
    }
}

/// A head as it was sent, with the places of its parts. A request has a dozen headers and is asked for some thirty:
/// looking through the list costs less than making a map of it.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: Bytes,
    method: Method,
    /// The path, and its query behind a question mark.
    target: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
    /// A bit for each length that a name has, the last for all that are longer: most of what is asked for is not there.
    lengths: u64,
}

impl Text {
    fn target(&self) -> &str {
        // Checked when it was read.
        std::str::from_utf8(&self.bytes[self.target.clone()]).unwrap_or_default()
    }

    fn get(&self, wanted: &[u8]) -> Option<&[u8]> {
        if self.lengths & length_bit(wanted.len()) == 0 {
            return None;
        }
        let is_wanted = |name: &Range<usize>| {
            name.len() == wanted.len() && self.bytes[name.clone()].eq_ignore_ascii_case(wanted)
        };
        let (_, value) = self.fields.iter().find(|(name, _)| is_wanted(name))?;
        Some(&self.bytes[value.clone()])
    }
}

/// What has come of a request so far.
#[derive(Debug)]
pub(super) enum Progress {
    /// Not the whole head.
    Incomplete,
    /// A plain request, and how long its body is. Its head is no longer among the bytes.
    Plain(Text, usize),
    /// Something that is rare, or wrong: for a library that knows everything there is. The bytes are as they were.
    Other,
}

/// Reads the head of a plain request off what has arrived: HTTP/1.1, a common method, a path, a body of a length that
/// is told and allowed, a connection that stays open.
pub(super) fn take(inbox: &mut BytesMut, body_bytes_max: usize) -> Progress {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(inbox, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Progress::Incomplete,
        Err(_) => return Progress::Other,
    };
    let Some((method, target, body)) = plain(&request, body_bytes_max) else { return Progress::Other };
    let place = |part: &[u8]| {
        let start = part.as_ptr() as usize - inbox.as_ptr() as usize;
        start..start + part.len()
    };
    let target = place(target.as_bytes());
    let fields =
        request.headers.iter().map(|field| (place(field.name.as_bytes()), place(field.value))).collect();
    let lengths = request.headers.iter().fold(0, |bits, field| bits | length_bit(field.name.len()));
    let bytes = inbox.split_to(length).freeze();
    Progress::Plain(Text { bytes, method, target, fields, lengths }, body)
}

fn length_bit(len: usize) -> u64 {
    1 << len.min(63)
}

/// More headers than any SDK sends.
const HEADERS_MAX: usize = 64;

/// Method, target and length of the body, where a request is as nearly all are.
fn plain<'a>(request: &httparse::Request<'_, 'a>, body_bytes_max: usize) -> Option<(Method, &'a str, usize)> {
    let method = match request.method? {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        _ => return None,
    };
    let target = request.path.filter(|target| request.version == Some(1) && target.starts_with('/'))?;
    // What else may be in a target, and what it means there, is not for here.
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)) {
        return None;
    }
    let mut body = None;
    let mut hosts = 0;
    for field in request.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        match field.name.len() {
            4 if is("host") => hosts += 1,
            6 if is("expect") => return None,
            7 if is("upgrade") => return None,
            10 if is("connection") && !field.value.eq_ignore_ascii_case(b"keep-alive") => return None,
            17 if is("transfer-encoding") => return None,
            14 if is("content-length") => {
                let told = number(field.value).filter(|told| body.is_none() && *told <= body_bytes_max)?;
                body = Some(told);
            }
            _ => {}
        }
    }
    (hosts == 1).then(|| (method, target, body.unwrap_or(0)))
}

/// Whether a request says to which host it goes, and says it once. Programs on its way could each believe another one,
/// and a guard would look at one that the server does not.
pub(super) fn names_one_host(parts: &Parts) -> bool {
    match parts.headers.get_all(http::header::HOST).iter().count() {
        // HTTP/2 has another place for it, and HTTP/1.0 none.
        0 => parts.version != http::Version::HTTP_11,
        1 => true,
        _ => false,
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    let plain = !digits.is_empty() && digits.len() <= 12 && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// Whether the end of a head can be among bytes of which `known` were looked at before: reading a head again with
/// each byte that arrives would take ever longer.
pub(super) fn may_end(inbox: &[u8], known: usize) -> bool {
    inbox[known.saturating_sub(2)..].windows(2).any(|pair| pair == b"\n\n" || pair == b"\n\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Progress {
        take(&mut BytesMut::from(text), 100)
    }

    #[test]
    fn a_plain_request_is_taken_off_and_what_follows_stays() {
        let mut inbox = BytesMut::from(
            "POST /dbs/a%20b/colls?x=1 HTTP/1.1\r\nHost: me:1\r\nX-MS-Version:  v \r\nx-ms-version: w\r\n\
             Content-Length: 3\r\nConnection: Keep-Alive\r\n\r\nabcGET",
        );
        let Progress::Plain(text, 3) = take(&mut inbox, 3) else { panic!("it is plain") };
        assert_eq!(inbox, "abcGET");
        let head = Head::of_text(text, true);
        assert_eq!((head.method(), head.path()), (&Method::POST, "/dbs/a%20b/colls"));
        assert_eq!(head.host(), Some("me:1"));
        let version = HeaderName::from_static("x-ms-version");
        assert_eq!(head.fields().get(version), Some("v".as_bytes()), "the first counts");
        assert_eq!(head.fields().get(http::header::ACCEPT), None);
        assert_eq!(
            head.fields().get(HeaderName::from_static("x-ms-versiom")),
            None,
            "one of the same length"
        );
        let long = HeaderName::from_bytes(&[b'x'; 80]).unwrap();
        assert_eq!(head.fields().get(long), None);
    }

    #[test]
    fn what_is_rare_or_wrong_is_left_for_the_library() {
        let head = |line: &str, fields: &str| format!("{line}\r\nhost: h\r\n{fields}\r\n");
        for (line, fields) in [
            ("PRI * HTTP/2.0", ""),
            ("GET / HTTP/1.0", ""),
            ("HEAD / HTTP/1.1", ""),
            ("OPTIONS * HTTP/1.1", ""),
            ("GET http://h/dbs HTTP/1.1", ""),
            ("GET /a#b HTTP/1.1", ""),
            ("GET /a\"b HTTP/1.1", ""),
            ("GET /ä HTTP/1.1", ""),
            ("POST / HTTP/1.1", "transfer-encoding: chunked\r\n"),
            ("POST / HTTP/1.1", "expect: 100-continue\r\n"),
            ("POST / HTTP/1.1", "content-length: 101\r\n"),
            ("POST / HTTP/1.1", "content-length: 1\r\ncontent-length: 1\r\n"),
            ("POST / HTTP/1.1", "content-length: +1\r\n"),
            ("POST / HTTP/1.1", "content-length: 1, 1\r\n"),
            ("POST / HTTP/1.1", "content-length:\r\n"),
            ("GET / HTTP/1.1", "connection: close\r\n"),
            ("GET / HTTP/1.1", "connection: upgrade\r\n"),
            ("GET / HTTP/1.1", "upgrade: h2c\r\n"),
            ("GET / HTTP/1.1", "bad name: 1\r\n"),
            ("GET / HTTP/1.1", "Host: h\r\n"),
            ("GET /", ""),
        ] {
            let text = head(line, fields);
            assert!(matches!(taken(&text), Progress::Other), "{text}");
        }
        assert!(matches!(taken("GET / HTTP/1.1\r\n\r\n"), Progress::Other), "no host");
        let many: String = (0..HEADERS_MAX).map(|n| format!("x-{n}: 1\r\n")).collect();
        assert!(matches!(taken(&head("GET / HTTP/1.1", &many)), Progress::Other));
    }

    #[test]
    fn half_a_head_waits_for_the_rest() {
        let whole = "GET /dbs HTTP/1.1\r\nhost: h\r\n\r\n";
        for end in 0..whole.len() {
            assert!(matches!(taken(&whole[..end]), Progress::Incomplete), "{}", &whole[..end]);
        }
        assert!(matches!(taken(whole), Progress::Plain(_, 0)));
        assert!(may_end(whole.as_bytes(), whole.len() - 1));
        assert!(!may_end(&whole.as_bytes()[..whole.len() - 3], 5));
    }
}
