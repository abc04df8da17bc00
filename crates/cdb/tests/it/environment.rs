//! What the environment says reaches the connections, for the command line and the provider under it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread;

use crate::stage::Stage;

fn cdb(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cdb"));
    command.args(args);
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("cdb runs")
}

#[test]
fn a_variable_that_cannot_be_used_is_named_by_every_command() {
    let stage = Stage::new("environment-wrong");
    for (name, value) in [
        ("AZURE_COSMOS_MAX_STREAMS_PER_CLIENT", "many"),
        ("AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT", "0"),
        ("AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS", "soon"),
        ("AZURE_COSMOS_HEDGING_THRESHOLD_MS", "-1"),
        ("HTTPS_PROXY", "socks5://me:secret@proxy:1080"),
    ] {
        let ended = cdb(&stage.args(&["instances"]), &[(name, value)]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(name) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn usable_variables_are_used() {
    let stage = Stage::new("environment-right");
    let variables = [
        ("AZURE_COSMOS_MAX_STREAMS_PER_CLIENT", "2"),
        ("AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT", "1"),
        ("AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS", "1"),
        ("AZURE_COSMOS_HEDGING_THRESHOLD_MS", "0"),
    ];
    let ended = cdb(&stage.args(&["instances"]), &variables);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn the_proxy_of_the_environment_is_gone_through() {
    let stage = Stage::new("environment-proxy");
    let target: SocketAddr = {
        let (_, authority) = stage.endpoint.trim_end_matches('/').split_once("://").expect("a URL");
        authority.replace("localhost", "127.0.0.1").parse().expect("an address")
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = format!("http://{}", listener.local_addr().expect("bound"));
    let (tell, asked) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let tell = tell.clone();
            thread::spawn(move || tunnel(client, target, &tell));
        }
    });
    // Nobody but the proxy knows this name.
    let endpoint = format!("http://cosmos.test:{}/", target.port());
    let key = crate::stage::ACCOUNT.emulator.key();
    let args = ["instances", "--endpoint", &endpoint, "--key", key, "--container", &stage.container];
    let ended = cdb(&args, &[("HTTP_PROXY", &proxy)]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let asked: Vec<String> = asked.try_iter().collect();
    let wanted = format!("CONNECT cosmos.test:{} HTTP/1.1", target.port());
    assert!(!asked.is_empty() && asked.iter().all(|line| *line == wanted), "{asked:?}");
}

fn tunnel(mut client: TcpStream, target: SocketAddr, tell: &mpsc::Sender<String>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    tell.send(String::from_utf8_lossy(&head).lines().next()?.to_owned()).ok()?;
    let mut server = TcpStream::connect(target).ok()?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client).ok()?;
    Some(())
}
