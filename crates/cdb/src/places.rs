//! Places that have a name, in a file of the user.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::exit::Problem;

/// All of them, and the one that is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Places {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) used: Option<String>,
    pub(crate) named: BTreeMap<String, Named>,
}

/// One place. Its key is not here: files are copied and backed up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Named {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// The variable that holds the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_env: Option<String>,
    /// The identity that signs in, in place of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entra: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
}

impl Places {
    /// Reads the user's file; there is none at first.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let Some(path) = path(|name| std::env::var(name).ok()) else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        serde_json::from_str(&text).map_err(|error| {
            Problem::Usage(format!("{} is not a list of contexts: {error}", path.display())).into()
        })
    }

    /// Writes the user's file.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let path = path(|name| std::env::var(name).ok()).ok_or_else(|| {
            Problem::Usage("neither HOME nor CDB_CONFIG says where contexts are kept".to_owned())
        })?;
        let told = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(told)?;
        }
        // Whole or not at all: another command may read it meanwhile.
        let half = path.with_extension("new");
        std::fs::write(&half, serde_json::to_string_pretty(self)? + "\n").with_context(told)?;
        std::fs::rename(&half, &path).with_context(told)
    }

    /// The place of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Named, Problem> {
        self.named.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.named.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
            Problem::Missing(format!(
                "there is no context {name:?} (known: {known}): `cdb context add` makes one"
            ))
        })
    }
}

/// Where they are kept.
fn path(environment: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("CDB_CONFIG").or_else(|| {
        let folder = set("XDG_CONFIG_HOME").or_else(|| set("APPDATA"));
        let folder = folder.or_else(|| set("HOME").map(|home| home.join(".config")))?;
        Some(folder.join("cdb").join("contexts.json"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_the_users_own() {
        let of = |pairs: &'static [(&str, &str)]| {
            path(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("HOME", "/h")]), Some("/h/.config/cdb/contexts.json".into()));
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), Some("/x/cdb/contexts.json".into()));
        assert_eq!(of(&[("CDB_CONFIG", "/c.json"), ("HOME", "/h")]), Some("/c.json".into()));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_unknown_name_is_told_with_those_there_are() {
        let places = Places { used: None, named: BTreeMap::from([("prod".to_owned(), Named::default())]) };
        assert!(places.find("prod").is_ok());
        assert!(places.find("test").unwrap_err().to_string().contains("known: prod"));
    }
}
