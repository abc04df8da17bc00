//! An account without sockets that the targets throw requests at.

use bytes::Bytes;
use cosmos_emulator::{Auth, Config, Emulator, Gateway};
use http::{Request, Response};
use tokio::runtime::Runtime;

/// The header that scopes a request to the partition key most documents have.
pub const KEY: (&str, &str) = ("x-ms-documentdb-partitionkey", "[\"p\"]");

/// An emulator in memory with one container of a few documents in several partitions, and the runtime its requests
/// run on.
pub struct Account {
    emulator: Emulator,
    runtime: Runtime,
}

impl Default for Account {
    fn default() -> Self {
        Self::behind(Gateway::AsService)
    }
}

impl Account {
    /// The account behind a gateway of this kind.
    pub fn behind(gateway: Gateway) -> Self {
        let config = Config { gateway, ..Config::default() }.with_auth(Auth::Open).with_partitions(4);
        let emulator = Emulator::open(config).expect("an account in memory opens");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let account = Self { emulator, runtime };
        account.made("/dbs", r#"{"id":"d"}"#);
        account
            .made("/dbs/d/colls", r#"{"id":"c","partitionKey":{"paths":["/pk"],"kind":"Hash","version":2}}"#);
        for n in 0..20 {
            account.restore(n);
            account.write(n, &format!("p{n}"));
        }
        account
    }

    /// Writes document `n` as it was at the start.
    pub fn restore(&self, n: u32) {
        self.write(n, "p");
    }

    fn write(&self, n: u32, pk: &str) {
        let document = format!(
            r#"{{"id":"i{n}","pk":"{pk}","n":{n},"s":"text {n}","list":[1,2,{{"k":{n}}}],"o":{{"a":{{"b":null}}}}}}"#
        );
        let key = format!("[\"{pk}\"]");
        let headers = [("x-ms-documentdb-is-upsert", "true"), (KEY.0, key.as_str())];
        let answer = self.send("POST", "/dbs/d/colls/c/docs", &headers, document.into());
        assert!(answer.is_some_and(|answer| answer.status().is_success()));
    }

    /// Sends one request; a panic inside the emulator shows as a 500, which no input may cause.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Option<Response<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("x-ms-version", "2020-07-15");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.runtime.block_on(self.emulator.handle(request.body(body).ok()?)).ok()?;
        assert_ne!(answer.status().as_u16(), 500, "{method} {path} {headers:?}: {:?}", answer.body());
        Some(answer)
    }

    fn made(&self, path: &str, body: &'static str) {
        let answer =
            self.send("POST", path, &[], Bytes::from_static(body.as_bytes())).expect("a legal request");
        assert_eq!(answer.status().as_u16(), 201);
    }
}
