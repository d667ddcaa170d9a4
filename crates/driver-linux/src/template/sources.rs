//! Where packages come from: the machine's own apt sources, narrowed to one Debian suite. No mirror
//! is named here; a machine without fitting sources has to be told one.

use std::fs;
use std::path::{Path, PathBuf};

/// The sources of `suite` and its `-updates` and `-security`, in apt's one-line form; empty when
/// the machine has none. On a Debian of another release, its own mirrors are asked for `suite`.
pub(super) fn of_suite(etc_apt: &Path, suite: &str, host_suite: Option<&str>) -> String {
    let entries = read(etc_apt);
    let exact = select(&entries, suite, suite);
    if !exact.is_empty() {
        return exact;
    }
    host_suite.map(|host| select(&entries, host, suite)).unwrap_or_default()
}

/// `VERSION_CODENAME` of a Debian machine.
pub(super) fn host_suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    (field("ID")? == "debian").then(|| field("VERSION_CODENAME")).flatten()
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The text between brackets in the one-line form, such as `signed-by=…`.
    options: String,
    uri: String,
    suite: String,
    components: String,
}

fn read(etc_apt: &Path) -> Vec<Entry> {
    let mut files = vec![etc_apt.join("sources.list")];
    let mut parts: Vec<PathBuf> = fs::read_dir(etc_apt.join("sources.list.d"))
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    parts.sort();
    files.extend(parts);
    let mut entries = Vec::new();
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("list") => entries.extend(text.lines().filter_map(one_line)),
            Some("sources") => entries.extend(deb822(&text)),
            _ => {}
        }
    }
    entries
}

fn one_line(line: &str) -> Option<Entry> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracket) => bracket.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components: Vec<&str> = words.collect();
    Some(Entry {
        options: options.trim().to_owned(),
        uri: uri.to_owned(),
        suite: suite.to_owned(),
        components: components.join(" "),
    })
}

fn deb822(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in lines.split(|line| line.trim().is_empty()) {
        let field = |key: &str| {
            stanza.iter().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.trim().eq_ignore_ascii_case(key).then(|| value.trim())
            })
        };
        let is_deb = field("Types").is_some_and(|types| types.split(' ').any(|one| one == "deb"));
        let enabled = !field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
        let (Some(uris), Some(suites)) = (field("URIs"), field("Suites")) else { continue };
        if !is_deb || !enabled {
            continue;
        }
        // An embedded key (an empty first line) is left out; mmdebstrap finds Debian's own keys.
        let signed_by = field("Signed-By").filter(|value| value.starts_with('/'));
        for uri in uris.split_whitespace() {
            entries.extend(suites.split_whitespace().map(|suite| Entry {
                options: signed_by.map(|path| format!("signed-by={path}")).unwrap_or_default(),
                uri: uri.to_owned(),
                suite: suite.to_owned(),
                components: field("Components").unwrap_or_default().to_owned(),
            }));
        }
    }
    entries
}

/// The lines of `from` and its pockets, written for `to`.
fn select(entries: &[Entry], from: &str, to: &str) -> String {
    let mut lines = String::new();
    for entry in entries {
        let Some(pocket) = entry.suite.strip_prefix(from) else { continue };
        if !matches!(pocket, "" | "-updates" | "-security") {
            continue;
        }
        let Entry { options, uri, components, .. } = entry;
        // Third parties use a release's name for their own repositories; Debian's have `main`.
        if !components.split(' ').any(|component| component == "main") || !is_debian(uri) {
            continue;
        }
        let options = if options.is_empty() { String::new() } else { format!("[{options}] ") };
        lines.push_str(&format!("deb {options}{uri} {to}{pocket} main\n"));
    }
    lines
}

/// Mirrors of Debian end in `/debian` or `/debian-security`, by its own mirror rules.
fn is_debian(uri: &str) -> bool {
    let path = uri.trim_end_matches('/');
    path.contains("/debian/") || path.ends_with("/debian") || path.ends_with("/debian-security")
}

#[cfg(test)]
mod tests;
