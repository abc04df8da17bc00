//! What survives a restart.

use cosmos_emulator::{Config, Emulator, Fsync};
use serde_json::json;

use crate::client::Client;

#[test]
fn items_survive_a_restart_with_their_versions() {
    let folder = tempfile::tempdir().unwrap();
    for fsync in [Fsync::On, Fsync::Off] {
        let place = folder.path().join(format!("{fsync:?}"));
        let config = || Config::default().with_partitions(3).with_folder(&place, fsync);
        let written = {
            let emulator = Emulator::start(config()).unwrap();
            let mut client = Client::new(&emulator).with_container();
            (0..20)
                .map(|index| {
                    client.create(&json!({"id": format!("i{index}"), "pk": format!("k{index}")})).expect(201)
                })
                .collect::<Vec<_>>()
        };
        let emulator = Emulator::start(config()).unwrap();
        let mut client = Client::new(&emulator);
        for (index, before) in written.iter().enumerate() {
            let path = format!("/dbs/d/colls/c/docs/i{index}");
            let after = client.get(&path).key(&format!("k{index}")).send().expect(200);
            assert_eq!(after.body, before.body);
            assert_eq!(after.header("etag"), before.header("etag"));
        }
        client.create(&json!({"id": "i0", "pk": "k0"})).expect(409);
        let session = written[7].header("x-ms-session-token").to_owned();
        let read =
            client.get("/dbs/d/colls/c/docs/i7").key("k7").header("x-ms-session-token", &session).send();
        assert_eq!(read.status, 200, "sessions go on over a restart");
    }
}

#[test]
fn a_folder_serves_one_emulator_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config::default().with_folder(folder.path(), Fsync::Off);
    let first = Emulator::start(config()).unwrap();
    let error = Emulator::start(config()).unwrap_err();
    assert!(matches!(error, cosmos_emulator::StartError::Store(_)), "{error}");
    drop(first);
    Emulator::start(config()).unwrap();
}

#[test]
fn a_file_is_no_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Emulator::start(Config::default().with_folder(file.path(), Fsync::Off)).unwrap_err();
    assert!(matches!(error, cosmos_emulator::StartError::Store(_)), "{error}");
}
