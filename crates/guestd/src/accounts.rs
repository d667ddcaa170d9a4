//! Who may run something: `/etc/passwd` and `/etc/group`, read without NSS, because the binary is
//! static and a sandbox has no directory service.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Longer files are not looked at: they are the tenant's, and looked at on every start of a command.
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

/// The two files, read again when they change. Tests have their own.
#[derive(Debug)]
pub struct Accounts {
    passwd: Cached,
    group: Cached,
    /// The kernel knows one id here, so every account has it.
    one_id: bool,
}

/// A file as it was when it was last read.
#[derive(Debug)]
struct Cached {
    path: String,
    last: Mutex<Option<(Version, Arc<str>)>>,
}

/// What changes when a file is written or replaced.
type Version = (u64, u64, i64, i64, u64);

impl Default for Accounts {
    fn default() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { one_id: has_one_id(&map), ..Self::at("/etc/passwd", "/etc/group") }
    }
}

impl Accounts {
    /// Two other files.
    pub fn at(passwd: &str, group: &str) -> Self {
        Self { passwd: Cached::new(passwd), group: Cached::new(group), one_id: false }
    }

    /// By name or number, either with `:group`: what an image's configuration may say. A number, and
    /// root, need no line in the file.
    pub(crate) fn find(&self, text: &str) -> Option<Account> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let text = self.passwd.read();
        let mut lines = text.iter().flat_map(|text| text.lines()).filter_map(account);
        let number = if user == "root" { Some(0) } else { user.parse::<u32>().ok() };
        let known = lines.find(|account| account.name == user || Some(account.uid) == number);
        let unlisted = |uid| Account { name: user.to_owned(), uid, gid: 0, home: "/".to_owned() };
        let mut account = known.or_else(|| number.map(unlisted))?;
        if let Some(group) = group {
            account.gid = self.group_id(group)?;
        }
        if self.one_id {
            (account.uid, account.gid) = (0, 0);
        }
        Some(account)
    }

    /// Whether a command can be somebody else than this process.
    pub(crate) fn differ(&self) -> bool {
        !self.one_id
    }

    fn group_id(&self, group_name: &str) -> Option<u32> {
        if let Ok(gid) = group_name.parse() {
            return Some(gid);
        }
        let text = self.group.read()?;
        let (_, gid, _) =
            text.lines().filter_map(group).find(|(name, _, _)| *name == group_name)?;
        Some(gid)
    }

    pub(crate) fn name_of_user(&self, uid: u32) -> Option<String> {
        let text = self.passwd.read()?;
        let account = text.lines().filter_map(account).find(|account| account.uid == uid);
        account.map(|account| account.name)
    }

    pub(crate) fn name_of_group(&self, gid: u32) -> Option<String> {
        let text = self.group.read()?;
        let (name, _, _) = text.lines().filter_map(group).find(|(_, id, _)| *id == gid)?;
        Some(name.to_owned())
    }

    /// Every group that the account is in, its own first.
    pub(crate) fn groups_of(&self, account: &Account) -> Vec<u32> {
        let mut groups = vec![account.gid];
        let Some(text) = self.group.read() else { return groups };
        for (_, gid, members) in text.lines().filter_map(group) {
            let member = members.split(',').any(|member| member == account.name);
            if member && !groups.contains(&gid) && groups.len() < GROUPS_MAX {
                groups.push(gid);
            }
        }
        groups
    }
}

impl Cached {
    fn new(path: &str) -> Self {
        Self { path: path.to_owned(), last: Mutex::new(None) }
    }

    /// `None` when it cannot be read or is too long.
    fn read(&self) -> Option<Arc<str>> {
        let meta = fs::metadata(&self.path).ok()?;
        let version = (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, text)) = &*last
            && *known == version
        {
            return Some(Arc::clone(text));
        }
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return None;
        }
        let bytes = fs::read(&self.path).ok()?;
        let text: Arc<str> = String::from_utf8_lossy(&bytes).into();
        *last = Some((version, Arc::clone(&text)));
        Some(text)
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

/// Whether a user namespace has the id 0 and no other.
fn has_one_id(map: &str) -> bool {
    let mut numbers = map.split_ascii_whitespace();
    numbers.next() == Some("0") && numbers.nth(1) == Some("1") && numbers.next().is_none()
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
