//! `cdb --entra`: no key anywhere, and tokens from wherever the machine has them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cosmos_emulator::{Config, Emulator, Entra};
use serde_json::json;

use crate::stage::Stage;
use crate::terminal::{Ended, run_with};

/// An account that lets tokens in, with a container.
fn account(container: &str) -> (Emulator, Stage) {
    let emulator = Emulator::start(Config::default().with_entra(Entra::default())).unwrap();
    let stage = Stage::open(&emulator, container);
    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    (emulator, stage)
}

fn token() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({"aud": "https://cosmos.azure.com", "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
        "iss": "https://sts.fake-issuer.net/7b1999a1-dfd7-440e-8204-00170979b984",
        "iat": now - 60, "nbf": now - 60, "exp": now + 3600});
    let part = |text: String| URL_SAFE_NO_PAD.encode(text);
    let head = part(json!({"alg": "RS256", "typ": "JWT", "kid": "none"}).to_string());
    format!("{head}.{}.{}", part(claims.to_string()), part("unsigned".to_owned()))
}

/// The endpoint that an app has its identity from; how often it was asked.
fn identity_endpoint() -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/msi/token", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                head.push(line.to_ascii_lowercase());
            }
            let is_right =
                head.first().is_some_and(|line| line.contains("resource=https%3a%2f%2fcosmos.azure.com"))
                    && head.iter().any(|line| line.starts_with("x-identity-header: hush"));
            count.fetch_add(1, Ordering::SeqCst);
            let expires = SystemTime::now() + Duration::from_secs(3600);
            let expires = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string();
            let body = json!({"access_token": token(), "expires_on": expires, "token_type": "Bearer",
                "resource": "https://cosmos.azure.com"})
            .to_string();
            let status = if is_right { "200 OK" } else { "400 Bad Request" };
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    (endpoint, asked)
}

fn with_entra(stage: &Stage, args: &[&str], environment: &[(&str, &str)]) -> Ended {
    run_with(&stage.args(args), environment)
}

#[test]
fn the_managed_identity_of_an_app_operates_workflows_without_a_key() {
    let (_emulator, stage) = account("entra-managed");
    let (endpoint, asked) = identity_endpoint();
    let machine = [("IDENTITY_ENDPOINT", endpoint.as_str()), ("IDENTITY_HEADER", "hush")];
    let listed = with_entra(&stage, &["instances", "--entra"], &machine).with_code(0);
    assert!(listed.stdout.contains("echo-1"), "{listed:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "one token serves a whole command");
    for args in [
        &["--entra=managed", "show", "echo-1"][..],
        &["why", "echo-1", "--entra"],
        &["queues", "--entra"],
        &["start", "late-1", "--name", "echo", "--input", "y", "--entra"],
        &["cancel", "late-1", "--entra"],
        &["fsck", "--entra"],
        &["delete", "echo-1", "--yes", "--entra"],
    ] {
        with_entra(&stage, args, &machine).with_code(0);
    }
    let by_variable = [&machine[..], &[("COSMOS_ENTRA", "managed")]].concat();
    with_entra(&stage, &["instances"], &by_variable).with_code(0);
}

#[cfg(unix)]
#[test]
fn who_is_signed_in_with_the_azure_cli_needs_no_key() {
    use std::os::unix::fs::PermissionsExt as _;

    let (_emulator, stage) = account("entra-developer");
    let folder = tempfile::tempdir().unwrap();
    let az = folder.path().join("az");
    let answer = json!({"accessToken": token(), "expiresOn": "2099-01-01 00:00:00.000000", "expires_on": 4_070_908_800_u64,
        "tokenType": "Bearer"});
    std::fs::write(&az, format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")).unwrap();
    std::fs::set_permissions(&az, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let listed = with_entra(&stage, &["instances", "--entra"], &[("PATH", &path)]).with_code(0);
    assert!(listed.stdout.contains("echo-1"), "{listed:?}");
}

#[test]
fn a_place_has_an_identity_and_what_is_missing_is_said() {
    let (_emulator, stage) = account("entra-missing");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("contexts.json").display().to_string();
    let (endpoint, _) = identity_endpoint();
    let machine =
        [("CDB_CONFIG", file.as_str()), ("IDENTITY_ENDPOINT", &endpoint), ("IDENTITY_HEADER", "hush")];
    run_with(
        &[
            "context",
            "add",
            "prod",
            "--endpoint",
            &stage.endpoint,
            "--container",
            &stage.container,
            "--entra",
        ],
        &machine,
    )
    .with_code(0);
    assert!(run_with(&["context"], &machine).with_code(0).stdout.contains("Entra, auto"));
    assert!(run_with(&["instances", "--context", "prod"], &machine).with_code(0).stdout.contains("echo-1"));

    let told = with_entra(&stage, &["instances", "--entra=environment"], &[]).with_code(2).stderr;
    assert!(told.contains("needs AZURE_CLIENT_SECRET"), "{told}");
    let told = with_entra(&stage, &["instances", "--entra=workload"], &[]).with_code(2).stderr;
    assert!(told.contains("needs AZURE_TENANT_ID"), "{told}");
    let told = with_entra(&stage, &["instances", "--entra=me"], &[]).with_code(2).stderr;
    assert!(told.contains("auto, environment, workload"), "{told}");
    with_entra(&stage, &["instances", "--entra", "--key", "a2V5"], &[]).with_code(2);
    let wrong = [("IDENTITY_ENDPOINT", endpoint.as_str()), ("IDENTITY_HEADER", "wrong")];
    let told = with_entra(&stage, &["instances", "--entra"], &wrong).with_code(7).stderr;
    assert!(told.contains("Cosmos DB Built-in Data Contributor"), "{told}");
}
