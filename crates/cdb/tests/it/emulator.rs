//! `cdb emulator`: its ready line, its errors, its end.

use std::net::TcpListener;

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
fn sigterm_ends_it_with_code_0_and_the_data_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::on_folder(folder.path(), &["--fsync", "off"]);
    let created = running.client().send("POST", "/dbs", None, &json!({"id": "d"})).unwrap();
    assert_eq!(created.0, 201);
    assert_eq!(running.terminate().code(), Some(0));
    let again = Running::on_folder(folder.path(), &[]);
    assert_eq!(again.client().send("GET", "/dbs/d", None, &Value::Null).unwrap().0, 200);
}
