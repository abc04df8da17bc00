//! Indexing policies: read, completed and checked as the service does, then compiled for the index.

use serde_json::{Map, Value, json};

use super::path::{PathId, Pattern, PatternEnd};
use super::terms::is_system_property;
use crate::Failure;
use crate::sql::source::{Direction, Path, Step};

/// What a container indexes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Policy {
    /// `consistent`, or `none`.
    pub(crate) mode: Mode,
    /// Which paths are in the index.
    root: Node,
    /// Paths that are included by name; documents without them are in the index too.
    pub(crate) explicit: Vec<Path>,
    /// Orders by several properties that the index can serve.
    pub(crate) composites: Vec<Composite>,
}

/// Whether anything is indexed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// With every write.
    Consistent,
    /// Never.
    None,
}

/// A composite index.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Composite {
    /// In order of importance.
    pub(crate) paths: Vec<(Path, Direction)>,
    /// Where its entries stand.
    pub(crate) id: PathId,
}

/// One step of all patterns together.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Node {
    children: std::collections::BTreeMap<Box<str>, Node>,
    each: Option<Box<Node>>,
    /// `/?`: the scalar here.
    scalar: Option<bool>,
    /// `/*`: everything from here on.
    wildcard: Option<bool>,
}

/// Where a walk through a document stands in the policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    node: Option<&'a Node>,
    inherited: bool,
}

impl<'a> Cursor<'a> {
    /// Below a property.
    pub(crate) fn property(self, name: &str) -> Self {
        Self { node: self.node.and_then(|node| node.children.get(name)), inherited: self.wildcard() }
    }

    /// Below an array.
    pub(crate) fn each(self) -> Self {
        Self { node: self.node.and_then(|node| node.each.as_deref()), inherited: self.wildcard() }
    }

    /// Whether a value here is in the index.
    pub(crate) fn includes_value(self) -> bool {
        self.node.and_then(|node| node.scalar).unwrap_or(self.wildcard())
    }

    /// Whether nothing here or below can be in the index.
    pub(crate) fn is_dead(self) -> bool {
        self.node.is_none() && !self.inherited
    }

    fn wildcard(self) -> bool {
        self.node.and_then(|node| node.wildcard).unwrap_or(self.inherited)
    }
}

impl Policy {
    /// Where a walk begins.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { node: Some(&self.root), inherited: false }
    }

    /// Whether values at a path are in the index. `id` and `_ts` always are, other system properties never.
    pub(crate) fn includes(&self, path: &[Step]) -> bool {
        if self.mode == Mode::None {
            return false;
        }
        match path {
            [Step::Property(name)] if matches!(&**name, "id" | "_ts") => true,
            [Step::Property(name), ..] if is_system_property(name) => false,
            _ => self.covers(path),
        }
    }

    /// Whether ORDER BY may name a path. System properties that are not in the index are sorted without it, unless
    /// the policy excludes them.
    pub(crate) fn allows_order(&self, path: &[Step]) -> bool {
        let is_system = matches!(path.first(), Some(Step::Property(name)) if is_system_property(name));
        self.includes(path) || is_system && self.mode != Mode::None && self.covers(path)
    }

    /// What the included and excluded paths say of a path.
    fn covers(&self, path: &[Step]) -> bool {
        let end = path.iter().fold(self.cursor(), |cursor, step| match step {
            Step::Property(name) => cursor.property(name),
            Step::Index(_) | Step::Each => cursor.each(),
        });
        end.includes_value()
    }

    /// The composite index that serves an order, and whether it is read backwards.
    pub(crate) fn composite_for(&self, order: &[(Path, Direction)]) -> Option<(&Composite, bool)> {
        let fits = |composite: &Composite, flip: bool| {
            composite.paths.len() == order.len()
                && composite
                    .paths
                    .iter()
                    .zip(order)
                    .all(|((have, a), (want, b))| have == want && (a == b) != flip)
        };
        self.composites.iter().find_map(|composite| {
            [false, true].into_iter().find(|flip| fits(composite, *flip)).map(|flip| (composite, flip))
        })
    }
}

/// Completes and checks the policy of a container's body, and compiles it.
///
/// # Errors
/// 400 with the reason.
pub(crate) fn normalise(given: Option<&Value>) -> Result<(Value, Policy), Failure> {
    let given = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err(Failure::bad_request("The 'indexingPolicy' must be an object.")),
    };
    let mode = match given.get("indexingMode").map(|mode| mode.as_str().map(str::to_ascii_lowercase)) {
        None => Mode::Consistent,
        Some(Some(mode)) if mode == "consistent" || mode == "lazy" => Mode::Consistent,
        Some(Some(mode)) if mode == "none" => Mode::None,
        Some(_) => return Err(Failure::bad_request("The 'indexingMode' must be 'consistent' or 'none'.")),
    };
    let mut document = Map::new();
    document.insert("indexingMode".into(), json!(if mode == Mode::None { "none" } else { "consistent" }));
    // A policy indexes everything it includes: clients that ask for less are told so.
    document.insert("automatic".into(), json!(mode == Mode::Consistent));
    let mut included = entries(&given, "includedPaths")?;
    let mut excluded = entries(&given, "excludedPaths")?;
    if mode == Mode::Consistent {
        if included.is_empty() && excluded.is_empty() {
            included.push(json!({"path": "/*"}));
        }
        let names_etag = |list: &[Value]| list.iter().any(|entry| entry["path"] == ETAG_PATH);
        if !names_etag(&included) && !names_etag(&excluded) {
            excluded.push(json!({"path": ETAG_PATH}));
        }
    } else if !included.is_empty() {
        return Err(Failure::bad_request(
            "An indexing policy whose mode is 'none' cannot include paths. Remove 'includedPaths' or set \
             'indexingMode' to 'consistent'.",
        ));
    }
    let (root, explicit) = compile_paths(&included, &excluded, mode)?;
    document.insert("includedPaths".into(), Value::Array(included));
    document.insert("excludedPaths".into(), Value::Array(excluded));
    let composites = match given.get("compositeIndexes") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => {
            let composites = compile_composites(list)?;
            document.insert("compositeIndexes".into(), normal_composites(list));
            composites
        }
    };
    if let Some(spatial) = given.get("spatialIndexes") {
        check_spatial(spatial)?;
        document.insert("spatialIndexes".into(), spatial.clone());
    }
    for kept in ["vectorIndexes", "fullTextIndexes"] {
        if let Some(value) = given.get(kept) {
            document.insert(kept.into(), value.clone());
        }
    }
    Ok((Value::Object(document), Policy { mode, root, explicit, composites }))
}

const ETAG_PATH: &str = "/\"_etag\"/?";

fn entries(given: &Map<String, Value>, field: &str) -> Result<Vec<Value>, Failure> {
    match given.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list.iter().cloned().map(without_indexes).collect()),
        Some(_) => {
            Err(Failure::bad_request(format!("The '{field}' of an indexing policy must be an array.")))
        }
    }
}

/// Kinds, types and precisions are of an older index; they are taken and not kept.
fn without_indexes(mut entry: Value) -> Value {
    if let Some(fields) = entry.as_object_mut() {
        fields.remove("indexes");
    }
    entry
}

fn compile_paths(included: &[Value], excluded: &[Value], mode: Mode) -> Result<(Node, Vec<Path>), Failure> {
    let mut root = Node::default();
    let mut explicit = Vec::new();
    let mut has_root = mode == Mode::None;
    let mut seen = std::collections::BTreeSet::new();
    for (list, include) in [(included, true), (excluded, false)] {
        for entry in list {
            let text = entry["path"].as_str().ok_or_else(|| {
                Failure::bad_request("Each path of an indexing policy needs a 'path' string.")
            })?;
            let pattern = Pattern::parse(text)?;
            if !seen.insert(text.to_owned()) {
                return Err(Failure::bad_request(format!(
                    "The indexing path '{text}' is specified more than once; name it in one of 'includedPaths' and \
                     'excludedPaths'."
                )));
            }
            has_root |= pattern.steps.is_empty() && pattern.end == PatternEnd::Wildcard;
            let node = pattern.steps.iter().fold(&mut root, |node, step| match step {
                Step::Property(name) => node.children.entry(name.clone()).or_default(),
                Step::Index(_) | Step::Each => &mut **node.each.get_or_insert_default(),
            });
            match pattern.end {
                PatternEnd::Scalar => node.scalar = Some(include),
                PatternEnd::Wildcard => node.wildcard = Some(include),
            }
            // Of what the service adds itself nobody lacks anything.
            let is_added =
                matches!(pattern.steps.first(), Some(Step::Property(name)) if is_system_property(name));
            let is_plain = !is_added && !pattern.steps.contains(&Step::Each);
            if include && pattern.end == PatternEnd::Scalar && is_plain {
                explicit.push(pattern.steps);
            }
        }
    }
    if has_root {
        Ok((root, explicit))
    } else {
        Err(Failure::bad_request(
            "The special mandatory indexing path \"\\/\" is not provided in any of the path type sets. Please provide \
             this path in one of the sets.",
        ))
    }
}

fn compile_composites(list: &Value) -> Result<Vec<Composite>, Failure> {
    let wrong = || {
        Failure::bad_request(
            "'compositeIndexes' must be an array of arrays of {\"path\", \"order\"}, each with two to eight paths.",
        )
    };
    let lists = list.as_array().ok_or_else(wrong)?;
    if lists.len() > COMPOSITES_MAX {
        return Err(Failure::bad_request(format!(
            "An indexing policy can have at most {COMPOSITES_MAX} composite indexes."
        )));
    }
    lists
        .iter()
        .map(|list| {
            let list = list
                .as_array()
                .filter(|list| (2..=COMPOSITE_PATHS_MAX).contains(&list.len()))
                .ok_or_else(wrong)?;
            let paths = list
                .iter()
                .map(|entry| {
                    let text = entry["path"].as_str().ok_or_else(wrong)?;
                    let direction =
                        match entry.get("order").and_then(Value::as_str).map(str::to_ascii_lowercase) {
                            None => Direction::Ascending,
                            Some(order) if order == "ascending" => Direction::Ascending,
                            Some(order) if order == "descending" => Direction::Descending,
                            Some(_) => return Err(wrong()),
                        };
                    Ok((Pattern::parse_plain(text)?, direction))
                })
                .collect::<Result<Vec<_>, Failure>>()?;
            let id = PathId::of_composite(&paths);
            Ok(Composite { paths, id })
        })
        .collect()
}

fn normal_composites(list: &Value) -> Value {
    let mut list = list.clone();
    for entry in list.as_array_mut().into_iter().flatten().filter_map(Value::as_array_mut).flatten() {
        if let Some(entry) = entry.as_object_mut()
            && !entry.contains_key("order")
        {
            entry.insert("order".into(), json!("ascending"));
        }
    }
    list
}

fn check_spatial(list: &Value) -> Result<(), Failure> {
    const TYPES: [&str; 4] = ["Point", "LineString", "Polygon", "MultiPolygon"];
    let wrong = || {
        Failure::bad_request(
            "'spatialIndexes' must be an array of {\"path\", \"types\"}, with types of Point, LineString, Polygon and \
             MultiPolygon.",
        )
    };
    for entry in list.as_array().ok_or_else(wrong)? {
        Pattern::parse(entry["path"].as_str().ok_or_else(wrong)?)?;
        let types = entry.get("types").map(|types| types.as_array().ok_or_else(wrong)).transpose()?;
        if types.into_iter().flatten().any(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name))) {
            return Err(wrong());
        }
    }
    Ok(())
}

const COMPOSITES_MAX: usize = 100;
const COMPOSITE_PATHS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(value: &Value) -> Policy {
        normalise(Some(value)).expect("valid policy").1
    }

    fn path(text: &str) -> Path {
        text.split('.')
            .map(|name| if name == "[]" { Step::Each } else { Step::Property(name.into()) })
            .collect()
    }

    #[test]
    fn a_missing_policy_becomes_the_services_default() {
        let (document, policy) = normalise(None).expect("valid policy");
        assert_eq!(
            document,
            json!({"indexingMode": "consistent", "automatic": true, "includedPaths": [{"path": "/*"}],
                   "excludedPaths": [{"path": "/\"_etag\"/?"}]})
        );
        assert!(
            policy.includes(&path("a.b"))
                && policy.includes(&path("tags.[]"))
                && !policy.includes(&path("_etag"))
        );
    }

    #[test]
    fn the_longer_path_decides() {
        let policy = policy(&json!({
            "includedPaths": [{"path": "/*"}, {"path": "/a/b/?"}, {"path": "/l/[]/x/?"}],
            "excludedPaths": [{"path": "/a/*"}, {"path": "/s/?"}, {"path": "/l/*"}]
        }));
        for (text, included) in [
            ("x", true),
            ("a", false),
            ("a.c", false),
            ("a.b", true),
            ("a.b.c", false),
            ("s", false),
            ("s.t", true),
            ("l.[].x", true),
            ("l.[].y", false),
        ] {
            assert_eq!(policy.includes(&path(text)), included, "{text}");
        }
        assert_eq!(policy.explicit, [path("a.b")]);
    }

    #[test]
    fn id_and_ts_are_indexed_unless_nothing_is() {
        let sparse = policy(&json!({"excludedPaths": [{"path": "/*"}]}));
        assert!(
            sparse.includes(&path("id")) && sparse.includes(&path("_ts")) && !sparse.includes(&path("a"))
        );
        let none = policy(&json!({"indexingMode": "none"}));
        assert!(!none.includes(&path("id")));
    }

    #[test]
    fn composite_indexes_serve_their_order_and_its_opposite() {
        let policy =
            policy(&json!({"compositeIndexes": [[{"path": "/a"}, {"path": "/b", "order": "descending"}]]}));
        let order = |a, b| vec![(path("a"), a), (path("b"), b)];
        use Direction::{Ascending, Descending};
        let flip = |order: &[(Path, Direction)]| policy.composite_for(order).map(|(_, flip)| flip);
        assert_eq!(flip(&order(Ascending, Descending)), Some(false));
        assert_eq!(flip(&order(Descending, Ascending)), Some(true));
        assert_eq!(flip(&order(Ascending, Ascending)), None);
    }

    #[test]
    fn policies_the_service_refuses_are_refused() {
        for value in [
            json!(1),
            json!({"indexingMode": "sometimes"}),
            json!({"indexingMode": "none", "includedPaths": [{"path": "/*"}]}),
            json!({"includedPaths": [{"path": "/a/?"}]}),
            json!({"includedPaths": [{"path": "/*"}, {"path": "/a"}]}),
            json!({"includedPaths": [{"path": "/*"}, {"path": "a/?"}]}),
            json!({"includedPaths": [{"path": "/*"}, {"path": "/a/?"}], "excludedPaths": [{"path": "/a/?"}]}),
            json!({"includedPaths": [{}]}),
            json!({"compositeIndexes": [[{"path": "/a"}]]}),
            json!({"compositeIndexes": [[{"path": "/a/*"}, {"path": "/b"}]]}),
            json!({"compositeIndexes": [[{"path": "/a", "order": "up"}, {"path": "/b"}]]}),
            json!({"spatialIndexes": [{"path": "/l/*", "types": ["Circle"]}]}),
        ] {
            assert_eq!(normalise(Some(&value)).map(drop).map_err(|f| f.status), Err(400), "{value}");
        }
    }
}
