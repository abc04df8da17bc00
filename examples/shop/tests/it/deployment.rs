//! What is in `deploy/` agrees with the programs.

use serde_json::Value;

fn file(name: &str) -> String {
    let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_template_makes_the_container_that_the_provider_wants() {
    let template: Value = serde_json::from_str(&file("deploy/azure/container.json")).unwrap();
    let mut wanted = serde_json::to_value(duroxide_cdb::container_definition("x")).unwrap();
    wanted.as_object_mut().unwrap().remove("id");
    assert_eq!(template, wanted);
    let bicep = file("deploy/azure/main.bicep");
    assert!(bicep.contains("loadJsonContent('container.json')"));
    assert!(
        bicep.contains("defaultConsistencyLevel: 'Session'")
            && bicep.contains("enableMultipleWriteLocations: false")
    );
}

#[test]
fn every_variable_of_the_manifest_and_of_the_example_is_read_by_a_program() {
    let sources = [
        "examples/shop/src/settings.rs",
        "examples/shop/src/bin/shop-worker.rs",
        "crates/duroxide-cdb/src/config.rs",
        "crates/cdb/src/context.rs",
        "crates/cdb/src/args.rs",
    ]
    .map(file)
    .join("\n");
    let manifest = file("deploy/kubernetes/shop.yaml");
    let example = file(".env.example");
    let names = manifest
        .lines()
        .filter_map(|line| line.trim().split_once(':').map(|(name, _)| name))
        .chain(
            example
                .lines()
                .filter_map(|line| line.trim_start_matches('#').split_once('=').map(|(name, _)| name)),
        )
        .filter(|name| ["COSMOS_", "SHOP_", "CDB_"].iter().any(|prefix| name.starts_with(prefix)));
    let mut count = 0;
    for name in names {
        let suffix = name.strip_prefix("COSMOS_").unwrap_or(name);
        let is_read = sources.contains(&format!("\"{name}\"")) || sources.contains(&format!("\"{suffix}\""));
        assert!(is_read, "nothing reads {name}");
        count += 1;
    }
    assert!(count >= 12, "{count}");
}

#[test]
fn the_worker_ends_by_itself_before_the_cluster_kills_it() {
    let manifest = file("deploy/kubernetes/shop.yaml");
    let number = |name: &str| -> u64 {
        let line =
            manifest.lines().find(|line| line.trim().starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.split(':').nth(1).unwrap().trim().trim_matches('"').parse().unwrap()
    };
    assert!(number("SHOP_GRACE_SECONDS") + 5 <= number("terminationGracePeriodSeconds"));
}
