//! Control groups of an ordinary user: those below one that was given to them (systemd does that for
//! `Delegate=yes`), if there is one at all.
//!
//! A process may only move between groups when their nearest common parent is the user's too. So the
//! search begins at the group that this process is in, and goes up as long as it may write.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CONTROLLERS, Hierarchy, unified_mount};

/// What `instance` may use on this host; a hierarchy without groups when nothing was delegated.
pub(super) fn find(instance: &str) -> Hierarchy {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    let own = own_group(&read("/proc/self/cgroup")).unwrap_or_default();
    let root = unified_mount(&mounts);
    root.and_then(|root| below(&root, &own, instance)).unwrap_or_else(none)
}

fn none() -> Hierarchy {
    Hierarchy {
        unified: None,
        unified_has: Vec::new(),
        legacy: Vec::new(),
        unified_has_io: false,
        legacy_io: None,
    }
}

/// The path of the process in the unified hierarchy, without its leading slash.
fn own_group(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Outside of what this process's cgroup namespace shows.
    (!line.starts_with("..")).then(|| line.trim_end().to_owned())
}

/// The group of this instance: it may be there already, made by a server of before.
fn below(root: &Path, own: &str, instance: &str) -> Option<Hierarchy> {
    let name = format!("bastide-{instance}");
    let mut writable = Vec::new();
    let mut here = root.join(own);
    while here.starts_with(root) && may_use(&here) {
        writable.push(here.clone());
        here.pop();
    }
    // A server that ran in another group of the same parent used what is there.
    let made = writable.iter().map(|parent| parent.join(&name)).find(|group| group.is_dir());
    // Controllers can only be given on by a group that has no processes itself.
    let free = writable.iter().find(|parent| members(parent).is_empty());
    let alone = || make_room(writable.first()?);
    let parent = free.cloned().or_else(alone).or_else(|| writable.first().cloned())?;
    let unified = made.unwrap_or_else(|| parent.join(&name));
    let parent = unified.parent()?.to_owned();
    if !unified.is_dir() {
        fs::create_dir(&unified).ok()?;
    }
    let unified_has = CONTROLLERS
        .iter()
        .filter(|controller| {
            let on = |group: &Path| {
                let file = group.join("cgroup.subtree_control");
                has(&file, controller) || fs::write(file, format!("+{controller}")).is_ok()
            };
            has(&parent.join("cgroup.controllers"), controller) && on(&parent) && on(&unified)
        })
        .map(|&controller| controller.to_owned())
        .collect();
    Some(Hierarchy {
        unified: Some(unified),
        unified_has,
        legacy: Vec::new(),
        unified_has_io: false,
        legacy_io: None,
    })
}

/// A group in which nobody is but this process, which goes into one below it.
fn make_room(group: &Path) -> Option<PathBuf> {
    let alone = members(group).trim() == std::process::id().to_string();
    let aside = group.join("bastide-server");
    if !alone || (!aside.is_dir() && fs::create_dir(&aside).is_err()) {
        return None;
    }
    fs::write(aside.join("cgroup.procs"), "0").ok()?;
    Some(group.to_owned())
}

fn may_use(group: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let writable = |path: PathBuf| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    writable(group.to_owned()) && writable(group.join("cgroup.procs"))
}

fn members(group: &Path) -> String {
    fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default()
}

fn has(file: &Path, controller: &str) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().any(|name| name == controller)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a group with these processes and controllers.
    fn group(path: &Path, members: &str, controllers: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cgroup.procs"), members).unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.subtree_control"), "").unwrap();
    }

    #[test]
    fn the_group_of_a_process_is_read_and_one_outside_is_none() {
        assert_eq!(
            own_group("12:pids:/x\n0::/user.slice/a.scope\n").unwrap(),
            "user.slice/a.scope"
        );
        assert_eq!(own_group("0::/../other\n"), None);
        assert_eq!(own_group("12:pids:/x\n"), None);
    }

    #[test]
    fn a_parent_without_processes_gives_its_controllers_on() {
        let root = tempfile::tempdir().unwrap();
        let slice = root.path().join("app.slice");
        group(&slice, "", "memory pids");
        group(&slice.join("terminal.scope"), "77\n", "memory pids");
        let found = below(root.path(), "app.slice/terminal.scope", "abc").unwrap();
        assert_eq!(found.unified, Some(slice.join("bastide-abc")));
        assert!(has(&slice.join("cgroup.subtree_control"), "+pids"));
        // A real group says without the plus what was asked for with it.
        let again = below(root.path(), "app.slice", "abc").unwrap();
        assert_eq!(again.unified, found.unified);
    }

    #[test]
    fn a_group_of_before_is_used_again() {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("a/b");
        group(&root.path().join("a"), "", "");
        group(&scope, "77\n", "");
        fs::create_dir(scope.join("bastide-abc")).unwrap();
        let found = below(root.path(), "a/b", "abc").unwrap();
        assert_eq!(found.unified, Some(scope.join("bastide-abc")));
        assert!(found.unified_has.is_empty());
    }

    #[test]
    fn a_group_that_is_not_ours_is_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(below(root.path(), "system.slice/ssh.service", "abc").is_none());
    }
}
