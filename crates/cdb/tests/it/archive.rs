//! `cdb export` and `import`: exact, checked, and alive afterwards.

use std::path::Path;

use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};

use crate::stage::{Stage, begun, ended};
use crate::terminal::{SOON, Watched, command, run};

fn sorted_documents(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    lines.pop();
    lines.sort();
    lines
}

#[test]
fn an_export_read_into_an_empty_container_is_the_same_and_its_workflows_continue() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first.ndjson"), folder.path().join("second.ndjson"));
    let source = Stage::new("archive-source");
    source.play_to_the_end(&[
        ("family-1", "family", "x"),
        ("again-1", "again", "2"),
        ("keeps-1", "keeps", "blue"),
    ]);
    source.play(&[("waits-1", "waits", ""), ("reads-1", "reads", "")], async |client| {
        begun(client, "waits-1").await;
        begun(client, "reads-1").await;
    });
    source.start_only("late-1", "echo", "later");
    source.run(&["raise", "waits-1", "yes", "Anna"]).with_code(0);
    let told = source.run(&["export", "-o", first.to_str().unwrap()]).with_code(0).stderr;
    assert!(told.contains("documents exported"), "{told}");

    let checked = run(&["import", first.to_str().unwrap(), "--check"]).with_code(0);
    assert!(checked.stderr.contains("is whole"), "{checked:?}");
    let endpoint = source.endpoint.as_str();
    let import = ["import", first.to_str().unwrap(), "--endpoint", endpoint, "--container", "archive-copy"];
    let told = run(&import).with_code(0).stderr;
    assert!(told.contains("documents imported"), "{told}");
    let copy = Stage::new("archive-copy");
    copy.run(&["export", "-o", second.to_str().unwrap()]).with_code(0);
    assert_eq!(sorted_documents(&first), sorted_documents(&second), "the round trip is exact");
    let told = run(&import).with_code(0).stderr;
    assert!(told.contains("0 documents imported") && told.contains("were there already"), "{told}");

    copy.run(&["fsck"]).with_code(0);
    copy.run(&["enqueue", "reads-1", "inbox", "hello"]).with_code(0);
    copy.play(&[], async |client| {
        for id in ["waits-1", "reads-1", "late-1"] {
            ended(client, id).await;
        }
    });
    let output = |id: &str| copy.run(&["show", id, "--json"]).with_code(0).json()["output"].clone();
    assert_eq!(
        (output("waits-1"), output("reads-1"), output("late-1")),
        ("Anna".into(), "hello".into(), "later".into())
    );
    assert_eq!(copy.run(&["show", "keeps-1", "--json"]).with_code(0).json()["kv"]["colour"], "blue");
    let different = run(&import).with_code(1);
    assert!(different.stderr.contains("has another document"), "{different:?}");
}

#[test]
fn an_interrupted_demo_moves_to_another_folder_and_ends_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (old, new, file) = (path("old"), path("new"), path("bakery.ndjson"));
    let mut demo = Watched::start(&["demo", "--data", &old, "--pace", "200"]);
    demo.until("bake     step ");
    demo.interrupt();
    demo.end_within(SOON).with_code(130);
    run(&["export", "--data", &old, "-o", &file]).with_code(0);
    run(&["import", &file, "--data", &new]).with_code(0);
    let summary = run(&["demo", "--data", &new, "--pace", "10", "--json"]).with_code(0).json();
    let workflows = summary["workflows"].as_array().unwrap();
    assert!(workflows.iter().all(|row| row["status"] == "Completed"), "{summary}");
    assert!(workflows.iter().any(|row| row["origin"] == "continued"), "{summary}");
}

#[test]
fn one_instance_is_exported_with_its_children_to_standard_output() {
    let stage = Stage::new("archive-one");
    stage.play_to_the_end(&[("family-1", "family", "x"), ("echo-1", "echo", "y")]);
    let text = stage.ok(&["export", "family-1"]);
    assert!(text.contains("family-1::sub::2") && !text.contains("echo-1"), "{text}");
    assert!(text.lines().last().unwrap().contains("sha256"), "{text}");
    stage.run(&["export", "nobody"]).with_code(5);
    stage.ok(&["delete", "family-1", "--yes"]);
    assert!(!stage.documents("family-1").is_empty(), "marks of its children's results stay for a while");
    stage.run(&["export", "family-1"]).with_code(5);
}

#[test]
fn an_export_that_fails_leaves_an_older_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup.ndjson");
    let name = file.to_str().unwrap();
    let emulator = Emulator::start(Config::default()).unwrap();
    let stage = Stage::open(&emulator, "archive-again");
    stage.play_to_the_end(&[("echo-1", "echo", "bread")]);
    stage.ok(&["export", "-o", name]);
    let before = std::fs::read(&file).unwrap();

    let untouched = stage.run(&["export", "nobody", "-o", name]).with_code(5);
    assert!(!untouched.stderr.contains("incomplete"), "{untouched:?}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let forbidden = Verdict::Status { code: 403, sub_status: 0, retry_after: None };
    let refused = emulator.faults().add(FaultRule::new(forbidden).on(Operation::Query));
    let failed = stage.run(&["export", "-o", name]);
    assert!(failed.code != 0 && refused.struck() > 0, "{failed:?}");
    assert!(failed.stderr.contains(&format!("{name}.part is incomplete")), "{failed:?}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    drop(refused);
    stage.ok(&["export", "-o", name]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the part has become the file");
}

#[cfg(unix)]
#[test]
fn an_export_and_a_data_folder_are_for_their_owner_alone() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let place = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = place.path().join("data");
    let file = place.path().join("all.ndjson");
    let victim = place.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    symlink(&victim, place.path().join("all.ndjson.part")).unwrap();
    let data = ["--data", folder.to_str().unwrap()];
    run(&["start", "echo-1", "--name", "echo", "--create", data[0], data[1]]).with_code(0);
    run(&["export", data[0], data[1], "-o", file.to_str().unwrap()]).with_code(0);
    assert_eq!(mode(&file), 0o600);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    let mut open = vec![folder];
    while let Some(path) = open.pop() {
        assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

#[cfg(unix)]
#[test]
fn an_export_over_a_link_keeps_the_link_and_who_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("secret.ndjson"), folder.path().join("latest"));
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let stage = Stage::new("archive-link");
    stage.ok(&["export", "-o", link.to_str().unwrap()]);
    assert!(link.is_symlink() && std::fs::read_to_string(&file).unwrap().contains("sha256"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_corrupt_file_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::new("archive-corrupt");
    stage.play_to_the_end(&[("echo-1", "echo", "bread")]);
    let whole = stage.ok(&["export"]);
    let file = folder.path().join("file.ndjson");
    let target = folder.path().join("target").to_str().unwrap().to_owned();
    let lines: Vec<&str> = whole.lines().collect();
    let cases = [
        (lines[..lines.len() - 1].join("\n"), "it is cut off"),
        (whole.replace("bread", "broad"), "its checksum is wrong"),
        (whole.replacen("{\"", "{", 2), "is not JSON"),
        (String::new(), "it is empty"),
        ("hello\n".to_owned(), "is not JSON"),
    ];
    for (text, expected) in cases {
        std::fs::write(&file, text).unwrap();
        let refused = run(&["import", file.to_str().unwrap(), "--data", &target]).with_code(1);
        assert!(refused.stderr.contains(expected), "{expected}: {refused:?}");
        assert!(!Path::new(&target).exists(), "nothing was opened: {expected}");
    }
    let missing = run(&["import", "/no/such/file", "--data", &target]).with_code(1);
    assert!(missing.stderr.contains("/no/such/file cannot be imported"), "{missing:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said() {
    let stage = Stage::new("archive-full");
    stage.play_to_the_end(&[("echo-1", "echo", "bread")]);
    let full = stage.run(&["export", "-o", "/dev/full"]).with_code(1);
    assert!(full.stderr.contains("No space left"), "{full:?}");
}

#[test]
fn an_export_can_be_piped_into_an_import() {
    let stage = Stage::new("archive-pipe");
    stage.play_to_the_end(&[("echo-1", "echo", "bread")]);
    let whole = stage.ok(&["export"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), whole).unwrap();
    let mut import = command(&["import", "-", "--endpoint", &stage.endpoint, "--container", "archive-piped"]);
    let output = import.stdin(std::fs::File::open(file.path()).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let copy = Stage::new("archive-piped");
    assert_eq!(copy.run(&["show", "echo-1", "--json"]).with_code(0).json()["output"], "bread");
}
