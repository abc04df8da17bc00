//! Which machine this is, so that a process that was started again on it does not wait for the one before.
//!
//! Only Linux says whether a process of a number is there; elsewhere nothing is known and leases end by themselves.

use std::sync::LazyLock;

/// What tells this machine, since it was started, and its space of process numbers from all others. Empty if nothing does.
pub(super) fn id() -> String {
    ID.clone()
}

static ID: LazyLock<String> = LazyLock::new(|| {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let (boot, space) = (boot.trim(), space.to_string_lossy());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_unknown = boot.is_empty() || space.is_empty() || hides_processes(&mounts);
    if is_unknown { String::new() } else { format!("{boot} {space}") }
});

/// Whether `/proc` may leave out processes that are there, as those of other users where a service is locked down. A list of
/// mounts that does not name it tells nothing.
fn hides_processes(mounts: &str) -> bool {
    let mut of_proc = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        (words.next() == Some("/proc")).then(|| words.nth(1).unwrap_or_default())
    });
    let is_open = |option: &str| matches!(option, "hidepid=0" | "hidepid=off");
    let hides = |options: &str| options.split(',').any(|o| o.starts_with("hidepid=") && !is_open(o));
    // What is mounted last lies on top.
    of_proc.next_back().is_none_or(hides)
}

/// Whether a process of some machine is known to have ended: it was one of this machine, and is not there.
pub(super) fn has_ended(machine: &str, process: u32) -> bool {
    let is_here = !machine.is_empty() && machine == *ID;
    is_here && !std::path::Path::new(&format!("/proc/{process}")).exists()
}

/// The name of this machine, for people.
pub(super) fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    let named = || ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok());
    kernel.filter(|name| !name.is_empty()).or_else(named).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_processes_are_hidden_nothing_is_known_of_them() {
        let open = "proc /proc proc rw,nosuid 0 0";
        let locked_down = "proc /proc proc rw,nosuid,hidepid=invisible 0 0";
        assert!(!hides_processes(open) && !hides_processes("proc /proc proc rw,hidepid=0 0 0"));
        assert!(hides_processes(locked_down) && hides_processes("proc /proc proc hidepid=2,rw 0 0"));
        assert!(hides_processes(&format!("{open}\n{locked_down}")));
        assert!(!hides_processes(&format!("{locked_down}\n/dev/sda / ext4 rw 0 0\n{open}")));
        assert!(hides_processes(""), "who knows");
    }

    #[test]
    fn only_a_process_of_this_machine_is_known_to_have_ended() {
        assert!(!has_ended(&id(), std::process::id()), "this one runs");
        assert!(!has_ended("elsewhere", u32::MAX) && !has_ended("", u32::MAX));
        assert_eq!(has_ended(&id(), u32::MAX), !id().is_empty());
    }
}
