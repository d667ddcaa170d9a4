//! Watching directories by inotify.
//!
//! Names are relative to the watched directory. A rename within it is `Rename` of the old name and
//! `Create` of the new one. Watching recursively watches directories that appear later, too; what
//! was put into them before they were watched is told as created, once.

mod table;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

pub(crate) use self::table::Watchers;
use crate::refusal::{Code, Refusal, Result};
use crate::sys;

/// The kernel's own limit for a user is of this order.
const DIRECTORIES_MAX: usize = 8192;

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Relative to the watched directory.
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) struct Watcher {
    inotify: AsyncFd<OwnedFd>,
    root: String,
    recursive: bool,
    /// By watch descriptor: the directory, relative to the root.
    directories: HashMap<i32, String>,
    /// Told as created before their own event came.
    told: HashSet<String>,
}

/// One event of the kernel, once it is ours.
struct Raw {
    watch: i32,
    flags: ReadFlags,
    name: String,
}

impl Watcher {
    pub(crate) fn new(root: &str, recursive: bool) -> Result<Self> {
        let failed = |errno| Refusal::errno("watch", errno);
        let inotify =
            inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
        let inotify = sys::watched(inotify).map_err(|error| Refusal::io("watch", &error))?;
        let (directories, told) = (HashMap::new(), HashSet::new());
        let mut watcher = Self { inotify, root: root.to_owned(), recursive, directories, told };
        watcher.add("", None)?;
        Ok(watcher)
    }

    /// What happened since the last call, at least one thing.
    pub(crate) async fn next(&mut self) -> Result<Vec<Event>> {
        loop {
            let raw = {
                let ready = self.inotify.readable().await;
                let mut ready = ready.map_err(|error| Refusal::io("watch", &error))?;
                let raw = read(self.inotify.get_ref())?;
                if raw.is_empty() {
                    ready.clear_ready();
                }
                raw
            };
            let mut events = Vec::new();
            for raw in raw {
                self.take(&raw, &mut events)?;
            }
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    fn take(&mut self, raw: &Raw, events: &mut Vec<Event>) -> Result<()> {
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&raw.watch);
            return Ok(());
        }
        let Some(directory) = self.directories.get(&raw.watch) else { return Ok(()) };
        if raw.name.is_empty() {
            // Of a directory itself: its parent tells, if that is watched.
            return Ok(());
        }
        let name = join(directory, &raw.name);
        let is_directory = raw.flags.contains(ReadFlags::ISDIR);
        let kinds = [
            (ReadFlags::CREATE | ReadFlags::MOVED_TO, Kind::Create),
            (ReadFlags::MODIFY, Kind::Write),
            (ReadFlags::DELETE, Kind::Remove),
            (ReadFlags::MOVED_FROM, Kind::Rename),
            (ReadFlags::ATTRIB, Kind::Chmod),
        ];
        let kind = kinds.iter().find(|(flags, _)| raw.flags.intersects(*flags));
        let Some((_, kind)) = kind else { return Ok(()) };
        if *kind == Kind::Create && self.told.remove(&name) {
            return Ok(());
        }
        if *kind == Kind::Rename && is_directory {
            self.forget_below(&name);
        }
        events.push(self.event(&name, *kind));
        if *kind == Kind::Create && is_directory && self.recursive {
            let tell = raw.flags.contains(ReadFlags::CREATE).then_some(events);
            self.add(&name, tell)?;
        }
        Ok(())
    }

    /// Watches a directory, and what is in it if that is wanted; tells what it finds when it may
    /// have been missed.
    fn add(&mut self, name: &str, mut tell: Option<&mut Vec<Event>>) -> Result<()> {
        let mut waiting = vec![name.to_owned()];
        while let Some(directory) = waiting.pop() {
            if self.directories.len() >= DIRECTORIES_MAX {
                let message = format!("more than {DIRECTORIES_MAX} directories to watch");
                return Err(Refusal::new(Code::ResourceExhausted, message));
            }
            let path = join(&self.root, &directory);
            match inotify::add_watch(self.inotify.get_ref(), path.as_str(), EVENTS) {
                Ok(watch) => drop(self.directories.insert(watch, directory.clone())),
                // It went, or became something else.
                Err(Errno::NOENT | Errno::NOTDIR) if !directory.is_empty() => continue,
                Err(Errno::NOSPC) => {
                    let message = "the kernel allows no more watched directories";
                    return Err(Refusal::new(Code::ResourceExhausted, message));
                }
                Err(errno) => return Err(Refusal::errno("watch", errno)),
            }
            if !self.recursive {
                return Ok(());
            }
            let Ok(entries) = fs::read_dir(&path) else { continue };
            for entry in entries.flatten() {
                let name = join(&directory, &entry.file_name().to_string_lossy());
                if let Some(events) = &mut tell {
                    self.told.insert(name.clone());
                    events.push(self.event(&name, Kind::Create));
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(name);
                }
            }
        }
        Ok(())
    }

    /// A directory moved away takes its watches with it, under names that are wrong now.
    fn forget_below(&mut self, name: &str) {
        let inside = format!("{name}/");
        let inotify = self.inotify.get_ref();
        self.directories.retain(|watch, directory| {
            let goes = directory == name || directory.starts_with(&inside);
            if goes {
                let _ = inotify::remove_watch(inotify, *watch);
            }
            !goes
        });
    }

    fn event(&self, name: &str, kind: Kind) -> Event {
        Event { name: name.to_owned(), path: join(&self.root, name), kind }
    }
}

/// Everything that waits, as far as one buffer holds it.
fn read(inotify: &OwnedFd) -> Result<Vec<Raw>> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                let (watch, flags) = (event.wd(), event.events());
                events.push(Raw { watch, flags, name: name.unwrap_or_default() });
            }
            Err(Errno::AGAIN) => return Ok(events),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Refusal::errno("watch", errno)),
        }
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

fn join(directory: &str, name: &str) -> String {
    match (directory, name) {
        ("", name) => name.to_owned(),
        (directory, "") => directory.to_owned(),
        ("/", name) => format!("/{name}"),
        (directory, name) => format!("{directory}/{name}"),
    }
}
