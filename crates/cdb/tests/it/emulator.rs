//! `cdb emulator`: its ready line, its errors, its end.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Client, Running, cdb};

#[test]
fn the_ready_line_is_first_and_names_every_endpoint() {
    let running = Running::start(&["--memory"]);
    assert_eq!(running.ready["event"], "ready");
    let account = running.ready["accountEndpoint"].as_str().unwrap();
    assert!(account.starts_with("http://127.0.0.1:") && account.ends_with('/'), "{account}");
    assert_eq!(running.ready["regions"][0]["gatewayEndpoint"], account);
    assert!(running.ready["regions"][0]["name"].is_string());
    let (status, document) = running.client().send("GET", "/", None, &Value::Null).unwrap();
    assert_eq!(
        (status, document["writableLocations"][0]["databaseAccountEndpoint"].as_str()),
        (200, Some(account))
    );
    let management = running.ready["managementEndpoint"].as_str().unwrap();
    let (status, health) = Client::at(management).send("GET", "/health", None, &Value::Null).unwrap();
    assert_eq!((status, health), (200, json!({"status": "ok"})));
}

#[test]
fn without_management_there_is_no_second_port() {
    let running = Running::start(&["--memory", "--no-management"]);
    assert!(running.ready.get("managementEndpoint").is_none());
}

#[test]
fn a_taken_port_is_said_with_exit_code_3() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = cdb(&["emulator", "--memory", "--port", &port]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains(&format!("port {port}")) && message.contains("is taken"), "{message}");
    assert!(output.stdout.is_empty(), "not ready, no ready line");
}

#[test]
fn a_folder_in_use_is_said_with_exit_code_4() {
    let folder = tempfile::tempdir().unwrap();
    let _running = Running::on_folder(folder.path(), &[]);
    let output = cdb(&["emulator", "--port", "0", "--data", folder.path().to_str().unwrap()]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(message.contains(folder.path().to_str().unwrap()), "{message}");
}

#[test]
fn a_file_instead_of_a_folder_is_said_with_exit_code_4() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = cdb(&["emulator", "--port", "0", "--data", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_broken_key_and_a_wrong_option_are_exit_code_2() {
    let output = cdb(&["emulator", "--memory", "--port", "0", "--key", "not base64!"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(cdb(&["emulator", "--fsync", "perhaps"]).status.code(), Some(2));
}

#[test]
fn help_tells_every_option_and_examples() {
    let output = cdb(&["emulator", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    for word in [
        "--port",
        "--data",
        "--memory",
        "--fsync",
        "--key",
        "--no-auth",
        "--partitions",
        "--management-port",
        "Examples:",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

#[cfg(unix)]
#[test]
fn both_signals_end_it_with_code_0_and_the_data_is_kept() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let running = Running::on_folder(folder.path(), &["--fsync", "off"]);
        let created = running.client().send("POST", "/dbs", None, &json!({"id": "d"})).unwrap();
        assert_eq!(created.0, 201);
        assert_eq!(running.end_by(signal).code(), Some(0), "{signal}");
        let again = Running::on_folder(folder.path(), &[]);
        assert_eq!(again.client().send("GET", "/dbs/d", None, &Value::Null).unwrap().0, 200, "{signal}");
    }
}

#[test]
fn it_is_ready_within_fifty_milliseconds() {
    const BOUND: Duration = Duration::from_millis(50);
    // Other tests run beside this one, so of several starts one must be as quick as that.
    const STARTS_MAX: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    for args in [&["--memory"][..], &["--data", folder.path().to_str().unwrap()]] {
        let start = || {
            let began = Instant::now();
            let running = Running::start(args);
            let took = began.elapsed();
            running.kill();
            took
        };
        let slow: Vec<Duration> =
            (0..STARTS_MAX).map(|_| start()).take_while(|took| *took >= BOUND).collect();
        assert!(slow.len() < STARTS_MAX, "{args:?}: {slow:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_emulator_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for running in [Running::start(&["--memory"]), Running::on_folder(folder.path(), &[])] {
        assert_eq!(running.client().send("POST", "/dbs", None, &json!({"id": "d"})).unwrap().0, 201);
        // It may have something to finish after the answer. What goes on for ever is seen in every second.
        let in_a_second = || {
            let before = wakes(running.id());
            std::thread::sleep(Duration::from_secs(1));
            wakes(running.id()) - before
        };
        let seconds: Vec<u64> = (0..5).map(|_| in_a_second()).take_while(|count| *count > 0).collect();
        assert!(seconds.len() < 5, "its threads woke up {seconds:?} times a second");
    }
}

/// How often the threads of a process went to sleep so far: once for each time something woke them.
#[cfg(target_os = "linux")]
fn wakes(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let sleeps = threads.map(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    });
    sleeps.sum()
}

#[test]
fn help_groups_the_options_and_names_the_new_ones() {
    let help = String::from_utf8(cdb(&["emulator", "--help"]).stdout).unwrap();
    for word in [
        "Data:",
        "Access:",
        "TLS and connections:",
        "Account:",
        "--region",
        "--multi-write",
        "--consistency",
        "--replication-delay-ms",
        "--throttle",
        "--serverless",
        "--tls ",
        "--tls-certificate",
        "--tls-key",
        "--tls-name",
        "--export-certificate",
        "--connection-age",
        "--entra",
        "--config",
        "--restore",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

#[test]
fn tls_is_announced_and_the_certificate_exported() {
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("cosmos.pem");
    let running = Running::start(&["--memory", "--tls", "--export-certificate", pem.to_str().unwrap()]);
    let account = running.ready["accountEndpoint"].as_str().unwrap();
    assert!(account.starts_with("https://127.0.0.1:"), "{account}");
    let text = std::fs::read_to_string(pem).unwrap();
    assert!(text.starts_with("-----BEGIN CERTIFICATE-----"), "{text}");
    let management = running.ready["managementEndpoint"].as_str().unwrap();
    assert!(management.starts_with("http://"), "{management}");
    assert_eq!(Client::at(management).send("GET", "/certificate", None, &Value::Null).unwrap().0, 200);
}

#[test]
fn a_certificate_that_cannot_be_used_is_said_with_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.pem");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let output = cdb(&[
        "emulator",
        "--memory",
        "--port",
        "0",
        "--tls-certificate",
        "/nowhere/x.pem",
        "--tls-key",
        file,
    ]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("/nowhere/x.pem") && message.contains("Check the path"), "{message}");
    let output = cdb(&["emulator", "--memory", "--port", "0", "--tls-certificate", file, "--tls-key", file]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("BEGIN CERTIFICATE"), "{message}");
}

#[test]
fn regions_have_an_endpoint_each_in_the_ready_line() {
    let running = Running::start(&["--memory", "--region", "East US", "--region", "West US"]);
    let regions = running.ready["regions"].as_array().unwrap();
    let names: Vec<&str> = regions.iter().filter_map(|region| region["name"].as_str()).collect();
    assert_eq!(names, ["East US", "West US"]);
    assert_ne!(regions[0]["gatewayEndpoint"], regions[1]["gatewayEndpoint"]);
    let west = regions[1]["gatewayEndpoint"].as_str().unwrap();
    let refused = Client::at(west).send("POST", "/dbs", None, &json!({"id": "d"})).unwrap();
    assert_eq!(refused.0, 403, "{}", refused.1);
    assert_eq!(running.client().send("POST", "/dbs", None, &json!({"id": "d"})).unwrap().0, 201);
}

#[test]
fn a_file_describes_the_account_and_options_win_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.json");
    let text = json!({
        "regions": ["East US", "West US"],
        "consistency": "Eventual",
        "databases": [{
            "id": "shop",
            "containers": [{"id": "orders", "partitionKey": {"paths": ["/customer"]}, "throughput": 400}],
        }],
        "seedItems": [{
            "database": "shop",
            "container": "orders",
            "items": [{"id": "1", "customer": "Ann"}, {"id": "2", "customer": "Bob"}],
        }],
    });
    std::fs::write(&file, text.to_string()).unwrap();
    let data = folder.path().join("data");
    let file = file.to_str().unwrap();
    // The second start finds everything there.
    for _ in 0..2 {
        let running =
            Running::on_folder(&data, &["--config", file, "--consistency", "session", "--fsync", "off"]);
        assert_eq!(running.ready["regions"].as_array().unwrap().len(), 2);
        let (status, account) = running.client().send("GET", "/", None, &Value::Null).unwrap();
        assert_eq!(status, 200);
        assert_eq!(account["userConsistencyPolicy"]["defaultConsistencyLevel"], "Session");
        let path = "/dbs/shop/colls/orders/docs/2";
        let (status, item) = running.client().send("GET", path, Some("Bob"), &Value::Null).unwrap();
        assert_eq!((status, item["customer"].as_str()), (200, Some("Bob")));
    }
    let wrong = folder.path().join("wrong.json");
    std::fs::write(&wrong, r#"{"regoins": []}"#).unwrap();
    let output = cdb(&["emulator", "--memory", "--port", "0", "--config", wrong.to_str().unwrap()]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("wrong.json") && message.contains("regoins"), "{message}");
}

#[test]
fn a_snapshot_of_a_running_emulator_is_restored_into_another() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let running = Running::on_folder(&folder.path().join("one"), &["--fsync", "off"]);
    assert_eq!(running.client().send("POST", "/dbs", None, &json!({"id": "d"})).unwrap().0, 201);
    let mut management = Client::at(running.ready["managementEndpoint"].as_str().unwrap());
    let taken = management.send("POST", "/snapshot", None, &json!({"folder": snapshot})).unwrap();
    assert_eq!(taken.0, 201, "{}", taken.1);
    let restored = Running::start(&["--memory", "--restore", snapshot.to_str().unwrap()]);
    assert_eq!(restored.client().send("GET", "/dbs/d", None, &Value::Null).unwrap().0, 200);
}

#[test]
fn entra_is_closed_unless_opened() {
    for (options, expected) in [(&["--memory"][..], 5002), (&["--memory", "--entra"], 5003)] {
        let running = Running::start(options);
        let answer =
            running.client().raw("GET", "/dbs", "authorization: type%3Daad%26ver%3D1.0%26sig%3Dx\r\n");
        assert!(answer.contains("401 Unauthorized"), "{answer}");
        assert!(answer.contains(&format!("x-ms-substatus: {expected}")), "{answer}");
    }
}

#[cfg(unix)]
#[test]
fn on_a_terminal_the_key_and_the_connection_string_can_be_copied() {
    use crate::terminal::Terminal;

    let own = "b3duIGtleSBvZiB0aGUgdXNlcg==";
    for (options, is_shown) in [(&[][..], true), (&["--key", own][..], false)] {
        let args = [&["emulator", "--memory", "--port", "0"][..], options].concat();
        let mut terminal = Terminal::start(&args, 200, 30);
        let told = terminal.told_until("pages for a browser");
        assert_eq!(told.contains("AccountEndpoint=http://127.0.0.1:"), is_shown, "{told}");
        assert!(!told.contains("\"event\"") && !told.contains(own), "{told}");
        terminal.signal("-TERM");
        assert_eq!(terminal.wait(), 0);
    }
}
