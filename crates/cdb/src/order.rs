//! Flags anywhere: people put the options of a command before its name as well as after it.

use std::ffi::{OsStr, OsString};

/// The command line with the options that were typed before the name of a command, or of one of its actions, after it; and
/// with the action of a command that has a usual one, if none is named.
pub(crate) fn arrange(args: Vec<OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut arranged: Vec<OsString> = args.next().into_iter().collect();
    let mut rest: Vec<OsString> = args.collect();
    // There it is a file.
    if !rest.iter().any(|arg| arg == "export") {
        say_json(&mut rest);
    }
    let mut moved = take_options(&mut rest);
    let group = rest
        .first()
        .and_then(|name| GROUPS.iter().find(|(names, _)| names.iter().any(|known| name == *known)));
    if let Some((_, usual)) = group {
        arranged.push(rest.remove(0));
        moved.extend(take_options(&mut rest));
        let wants_help = rest.first().is_some_and(|arg| arg == "--help" || arg == "-h");
        if rest.first().is_none_or(is_flag) && !wants_help {
            arranged.push((*usual).into());
        }
    }
    let end = rest.iter().position(|arg| arg == "--").unwrap_or(rest.len());
    let behind = rest.split_off(end);
    arranged.extend(rest);
    arranged.extend(moved);
    arranged.extend(behind);
    arranged
}

/// Other tools want `-o json`, `--output json` or `--output=json`: it means `--json` here, too.
fn say_json(args: &mut Vec<OsString>) {
    let mut place = 0;
    while place < args.len() && args[place] != "--" {
        let is_pair = ["-o", "--output"].iter().any(|name| args[place] == *name)
            && args.get(place + 1).is_some_and(|value| value == "json");
        if is_pair {
            args.remove(place);
        }
        if is_pair || ["-ojson", "--output=json"].iter().any(|name| args[place] == *name) {
            args[place] = "--json".into();
        }
        place += 1;
    }
}

/// Takes the options at the beginning that belong to commands.
fn take_options(args: &mut Vec<OsString>) -> Vec<OsString> {
    let (mut taken, mut kept) = (Vec::new(), Vec::new());
    let mut rest = std::mem::take(args).into_iter().peekable();
    while let Some(arg) = rest.next_if(is_flag) {
        let text = arg.to_string_lossy().into_owned();
        let (name, has_value) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (text.as_str(), false),
        };
        let list = if ROOT.contains(&name) || !(WITH_VALUE.contains(&name) || ALONE.contains(&name)) {
            &mut kept
        } else {
            &mut taken
        };
        let wants_value = !has_value && (WITH_VALUE.contains(&name) || ROOT.contains(&name));
        list.push(arg);
        if wants_value {
            list.extend(rest.next());
        }
    }
    args.extend(kept);
    args.extend(rest);
    taken
}

fn is_flag(arg: &OsString) -> bool {
    let text: &OsStr = arg;
    text.to_string_lossy().starts_with("--") && text != "--"
}

/// Options of commands that take a value.
const WITH_VALUE: [&str; 7] =
    ["--data", "--endpoint", "--key", "--database", "--container", "--context", "--management"];
/// Options of commands that take none.
const ALONE: [&str; 2] = ["--json", "--entra"];
/// Options that stand before commands as well: they take a value.
const ROOT: [&str; 3] = ["--log", "--color", "--codec-key"];
/// Commands that have actions, and the usual one.
const GROUPS: [(&[&str], &str); 3] =
    [(&["dead-letters", "dl"], "list"), (&["context", "contexts"], "list"), (&["retention"], "show")];

#[cfg(test)]
mod tests {
    use super::*;

    fn arranged(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        let arranged: Vec<String> =
            arrange(args).into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        arranged.join(" ")
    }

    #[test]
    fn options_may_stand_before_the_command_or_its_action() {
        for (typed, meant) in [
            ("cdb instances --json", "cdb instances --json"),
            ("cdb --json instances", "cdb instances --json"),
            ("cdb --data d instances -n 3", "cdb instances -n 3 --data d"),
            ("cdb --data=d --log debug instances", "cdb --log debug instances --data=d"),
            ("cdb --log=debug --json instances", "cdb --log=debug instances --json"),
            ("cdb --endpoint e sql -- --x", "cdb sql --endpoint e -- --x"),
            ("cdb dead-letters --data d", "cdb dead-letters list --data d"),
            ("cdb dl", "cdb dl list"),
            ("cdb --data d dl drop x --yes", "cdb dl drop x --yes --data d"),
            ("cdb dl --json --data d list", "cdb dl list --json --data d"),
            ("cdb dead-letters --help", "cdb dead-letters --help"),
            ("cdb context", "cdb context list"),
            ("cdb show x -o json --data d", "cdb show x --json --data d"),
            ("cdb --output json show x", "cdb show x --json"),
            ("cdb show x --output=json", "cdb show x --json"),
            ("cdb export -o json", "cdb export -o json"),
            ("cdb sql -- -o json", "cdb sql -- -o json"),
            ("cdb retention --data d", "cdb retention show --data d"),
            ("cdb --codec-key k=v instances", "cdb --codec-key k=v instances"),
            ("cdb --version", "cdb --version"),
            ("cdb --help", "cdb --help"),
            ("cdb", "cdb"),
            ("cdb --data", "cdb --data"),
        ] {
            assert_eq!(arranged(typed), meant, "{typed}");
        }
    }
}
