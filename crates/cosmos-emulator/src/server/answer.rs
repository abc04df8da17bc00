//! Answers while they are written: as the text of HTTP/1.1, or as the map a library takes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

/// What is written in the order of HTTP: status, headers, body.
pub(crate) trait Answer: From<Response<Bytes>> + Send + 'static {
    /// Begins with the headers that every answer has.
    fn begin(status: u16, base: &Base) -> Self;

    /// Sets headers to one value, leaving out a value that cannot be one; names of resources may be any UTF-8. Each name
    /// once.
    fn put(&mut self, names: &[HeaderName], value: &str);

    /// The same with a number, which most values are.
    fn put_number(&mut self, names: &[HeaderName], value: u64) {
        self.put(names, itoa::Buffer::new().format(value));
    }

    /// Says what time it is, which connections do otherwise.
    fn put_date(&mut self, date: &str) {
        self.put(&[http::header::DATE], date);
    }

    fn finish(self, body: Bytes) -> Self;
}

/// Headers that every answer has, in both forms.
#[derive(Debug)]
pub(crate) struct Base {
    map: HeaderMap,
    text: Vec<u8>,
}

impl Base {
    pub(crate) fn new(headers: &[(HeaderName, &str)]) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                map.insert(name, value);
            }
        }
        let mut text = Vec::new();
        push_map(&mut text, &map);
        Self { map, text }
    }
}

fn push_map(text: &mut Vec<u8>, map: &HeaderMap) {
    for (name, value) in map {
        push_line(text, name, value.as_bytes());
    }
}

fn push_line(text: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        text.extend_from_slice(part);
    }
}

/// An answer as HTTP/1.1 writes it, up to the headers that belong to the connection.
#[derive(Debug)]
pub(crate) struct Text {
    pub(super) status: u16,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    /// Whether it says itself what time it is.
    pub(super) is_dated: bool,
}

/// Room for an answer about an item, since a short body goes out behind its head.
const TEXT_BYTES_USUAL: usize = 4096;

impl Text {
    fn new(status: u16) -> Self {
        let mut head = Vec::with_capacity(TEXT_BYTES_USUAL);
        let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let mut digits = itoa::Buffer::new();
        for part in ["HTTP/1.1 ", digits.format(status), " ", reason.unwrap_or_default(), "\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        Self { status, head, body: Bytes::new(), is_dated: false }
    }
}

impl Answer for Text {
    fn begin(status: u16, base: &Base) -> Self {
        let mut answer = Self::new(status);
        answer.head.extend_from_slice(&base.text);
        answer
    }

    fn put(&mut self, names: &[HeaderName], value: &str) {
        if !value.bytes().all(is_value) {
            return;
        }
        for name in names {
            push_line(&mut self.head, name, value.as_bytes());
        }
    }

    fn put_date(&mut self, date: &str) {
        self.put(&[http::header::DATE], date);
        self.is_dated = true;
    }

    fn finish(self, body: Bytes) -> Self {
        Self { body, ..self }
    }
}

/// Whether a byte may be in the value of a header: a line's end in it would begin another header.
fn is_value(byte: u8) -> bool {
    (byte >= b' ' && byte != 127) || byte == b'\t'
}

impl From<Response<Bytes>> for Text {
    fn from(response: Response<Bytes>) -> Self {
        let mut answer = Self::new(response.status().as_u16());
        push_map(&mut answer.head, response.headers());
        answer.finish(response.into_body())
    }
}

impl Answer for Response<Bytes> {
    fn begin(status: u16, base: &Base) -> Self {
        let mut response = Self::new(Bytes::new());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        // A clone of the base would have no room for more.
        headers.reserve(HEADERS_USUAL);
        for (name, value) in &base.map {
            headers.insert(name, value.clone());
        }
        response
    }

    fn put(&mut self, names: &[HeaderName], value: &str) {
        let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) else { return };
        for name in names {
            self.headers_mut().insert(name, value.clone());
        }
    }

    fn finish(self, body: Bytes) -> Self {
        self.map(|_| body)
    }
}

/// Room for the headers of an answer about an item.
const HEADERS_USUAL: usize = 40;

#[cfg(test)]
mod tests {
    use http::header::{ETAG, LOCATION, SERVER};

    use super::*;

    fn both(write: impl Fn(&mut dyn FnMut(&[HeaderName], &str))) -> (String, HeaderMap) {
        let base = Base::new(&[(SERVER, "us")]);
        let (mut text, mut response) = (Text::begin(200, &base), Response::begin(200, &base));
        write(&mut |names, value| {
            text.put(names, value);
            response.put(names, value);
        });
        (String::from_utf8(text.head).unwrap(), response.headers().clone())
    }

    #[test]
    fn both_forms_say_the_same() {
        let (text, map) = both(|put| {
            put(&[ETAG], "\"1\"");
            put(&[LOCATION, http::header::VIA], "/dbs/ä");
        });
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\nserver: us\r\netag: \"1\"\r\nlocation: /dbs/ä\r\nvia: /dbs/ä\r\n"
        );
        assert_eq!(map.len(), 4);
        assert_eq!(map[http::header::VIA].as_bytes(), "/dbs/ä".as_bytes());
    }

    #[test]
    fn a_value_cannot_begin_another_header() {
        for value in ["a\r\nx: y", "a\nb", "\0", "\u{7f}"] {
            let (text, map) = both(|put| put(&[ETAG], value));
            assert_eq!(text, "HTTP/1.1 200 OK\r\nserver: us\r\n");
            assert_eq!(map.len(), 1);
        }
    }
}
