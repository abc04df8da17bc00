//! A disk with no more room. The writer is this test binary again, under a limit on the size of its files.

use std::env;
use std::path::Path;
use std::process::Command;

use cosmos_emulator::storage::Storage;

use super::{batch, open_disk, put};

const FOLDER: &str = "STORAGE_FULL_FOLDER";
/// In blocks of 1 KiB; the journal is laid out with 64 MiB at once.
const FILE_KILOBYTES_MAX: u32 = 66_000;
const VALUE_BYTES: usize = 2 << 20;

#[test]
fn a_disk_without_room_is_named_and_costs_nothing_acknowledged() {
    if let Some(folder) = env::var_os(FOLDER) {
        return write_until_refused(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "storage::full::a_disk_without_room_is_named_and_costs_nothing_acknowledged";
    let program = env::current_exe().unwrap();
    let limited =
        format!("trap '' XFSZ; ulimit -f {FILE_KILOBYTES_MAX}; exec \"$0\" --exact {test} --nocapture");
    let writer = Command::new("bash").args(["-c", &limited]).arg(program).env(FOLDER, folder.path()).output();
    let output = writer.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    // With room again, everything acknowledged is there and the store works.
    let storage = open_disk(folder.path());
    let count: usize = std::fs::read_to_string(folder.path().join("acknowledged")).unwrap().parse().unwrap();
    assert!(count > 10, "{count} were acknowledged before the limit");
    for number in 0..count {
        let value = storage.get(format!("{number:04}").as_bytes()).unwrap();
        assert_eq!(value.map(|value| value.len()), Some(VALUE_BYTES), "number {number} of {count}");
    }
    storage.commit(batch([put("after", "room")])).unwrap();
}

fn write_until_refused(folder: &Path) {
    let storage = open_disk(folder);
    let write = |number: usize| storage.commit(batch([put(format!("{number:04}"), vec![7; VALUE_BYTES])]));
    let mut count = 0;
    let refusal = loop {
        match write(count) {
            Ok(_) => count += 1,
            Err(refusal) => break refusal.to_string(),
        }
    };
    assert!(refusal.contains("size limit") && refusal.contains("acknowledged write is kept"), "{refusal}");
    let again = write(count + 1).unwrap_err().to_string();
    assert_eq!(again, refusal, "the reason is still told");
    assert_eq!(storage.get(b"0000").unwrap().map(|value| value.len()), Some(VALUE_BYTES), "reads go on");
    std::fs::write(folder.join("acknowledged"), count.to_string()).unwrap();
}
