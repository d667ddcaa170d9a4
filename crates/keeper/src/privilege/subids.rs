//! The ids that the administrator gave an ordinary user beside their own (`/etc/subuid`,
//! `/etc/subgid`), as a map for `newuidmap` and `newgidmap`, which check it again.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CANONICAL, USEFUL};

/// What `newuidmap` and `newgidmap` are to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Maps {
    pub(super) new_uid_map: PathBuf,
    pub(super) new_gid_map: PathBuf,
    pub(super) uids: Vec<u32>,
    pub(super) gids: Vec<u32>,
}

/// The maps of this user, or what is missing for them.
pub(super) fn of_user(uid: u32, gid: u32) -> Result<Maps, String> {
    let name = user_name(uid);
    let uids = map("/etc/subuid", name.as_deref(), uid, uid)?;
    let gids = map("/etc/subgid", name.as_deref(), uid, gid)?;
    let (new_uid_map, new_gid_map) = (program("newuidmap")?, program("newgidmap")?);
    Ok(Maps { new_uid_map, new_gid_map, uids, gids })
}

fn map(file: &str, name: Option<&str>, uid: u32, own: u32) -> Result<Vec<u32>, String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let map = triples(&text, name, uid, own);
    map.ok_or_else(|| format!("{file} gives uid {uid} no range of at least {USEFUL} ids"))
}

/// `inside outside count` again and again: the own id first, then what was given.
fn triples(text: &str, name: Option<&str>, uid: u32, own: u32) -> Option<Vec<u32>> {
    let number = uid.to_string();
    let mut map = vec![0, own, 1];
    let mut next = 1;
    for line in text.lines() {
        let mut fields = line.trim().split(':');
        let whose = fields.next().unwrap_or_default();
        if Some(whose) != name && whose != number {
            continue;
        }
        let (Some(Ok(start)), Some(Ok(count))) =
            (fields.next().map(str::parse::<u32>), fields.next().map(str::parse::<u32>))
        else {
            continue;
        };
        let count = count.min(CANONICAL - next);
        if count > 0 {
            map.extend([next, start, count]);
            next += count;
        }
    }
    (next >= USEFUL).then_some(map)
}

fn user_name(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let uid = uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
    line.split(':').next().map(str::to_owned)
}

fn program(name: &str) -> Result<PathBuf, String> {
    let places = ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file());
    found.ok_or_else(|| format!("{name} is not installed (package uidmap)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "alice:100000:65536\n1000:300000:10\nbob:200000:500\nalice:bad\n";

    #[test]
    fn a_range_follows_the_own_id_and_ends_with_the_canonical_ones() {
        let map = triples(FILE, Some("alice"), 1001, 1001).unwrap();
        assert_eq!(map, [0, 1001, 1, 1, 100_000, 65_535]);
    }

    #[test]
    fn ranges_by_name_and_by_number_are_added() {
        let map = triples(FILE, Some("alice"), 1000, 50).unwrap();
        assert_eq!(map, [0, 50, 1, 1, 100_000, 65_535]);
        let small = "1000:300000:1000\nalice:100000:20\n";
        let map = triples(small, Some("alice"), 1000, 50).unwrap();
        assert_eq!(map, [0, 50, 1, 1, 300_000, 1000, 1001, 100_000, 20]);
    }

    #[test]
    fn too_few_are_none() {
        assert_eq!(triples(FILE, Some("bob"), 7, 7), None);
        assert_eq!(triples(FILE, None, 7, 7), None);
    }
}
