//! Who may run something: `/etc/passwd` and `/etc/group`, read without NSS, because the binary is
//! static and a sandbox has no directory service.

use std::ffi::CString;
use std::fs;

/// Longer files are not looked at: they are the tenant's, and read on every start of a command.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The kernel's own limit is 65,536; nobody needs more than this.
const GROUPS_MAX: usize = 256;

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// Where the two files are. Tests have their own.
#[derive(Debug, Clone)]
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { passwd: "/etc/passwd".into(), group: "/etc/group".into() }
    }
}

impl Accounts {
    /// Two other files.
    pub fn at(passwd: &str, group: &str) -> Self {
        Self { passwd: passwd.into(), group: group.into() }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<Account> {
        let text = read(&self.passwd)?;
        text.lines().filter_map(account).find(|account| account.name == name)
    }

    pub(crate) fn name_of_user(&self, uid: u32) -> Option<String> {
        let text = read(&self.passwd)?;
        let account = text.lines().filter_map(account).find(|account| account.uid == uid);
        account.map(|account| account.name)
    }

    pub(crate) fn name_of_group(&self, gid: u32) -> Option<String> {
        let text = read(&self.group)?;
        let (name, _, _) = text.lines().filter_map(group).find(|(_, id, _)| *id == gid)?;
        Some(name.to_owned())
    }

    /// Every group that the account is in, its own first.
    pub(crate) fn groups_of(&self, account: &Account) -> Vec<u32> {
        let mut groups = vec![account.gid];
        let Some(text) = read(&self.group) else { return groups };
        for (_, gid, members) in text.lines().filter_map(group) {
            let member = members.split(',').any(|member| member == account.name);
            if member && !groups.contains(&gid) && groups.len() < GROUPS_MAX {
                groups.push(gid);
            }
        }
        groups
    }
}

impl Account {
    /// What a command of this account finds in its environment before anything else is added.
    pub(crate) fn env(&self) -> [(&'static str, &str); 3] {
        [("HOME", &self.home), ("USER", &self.name), ("LOGNAME", &self.name)]
    }
}

/// A string for the kernel, if it has no zero byte.
pub(crate) fn c_string(text: &str) -> Option<CString> {
    CString::new(text).ok()
}

fn read(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return None;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn account(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned();
    Some(Account { name, uid, gid, home })
}

fn group(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let gid = fields.nth(1)?.parse().ok()?;
    Some((name, gid, fields.next().unwrap_or("")))
}
