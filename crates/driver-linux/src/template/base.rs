//! A Debian base, made in two sandboxes: the first fetches, verifies and unpacks packages with the
//! machine's own mmdebstrap and runs none of them; in the second, whose root is that tree, their
//! scripts run. Nothing of either runs on the host.

use std::path::{Path, PathBuf};

use model::{Error, Result};

use super::recipe::{Script, root_shell};
use super::sources;

/// Where the first sandbox leaves the tree.
pub(super) const ROOTFS: &str = "rootfs";

/// What has to be there to begin: the archive's keys.
const KEYRINGS: &str = "/usr/share/keyrings";

/// The mirror that was given, or the part of the machine's apt sources that is for `suite`.
///
/// # Errors
/// `Unavailable` when there is neither: no mirror is named in here.
pub(super) fn sources(suite: &str, mirror: Option<&str>) -> Result<String> {
    if let Some(mirror) = mirror {
        let mirror = mirror.trim_end_matches('/');
        return Ok(format!(
            "deb {mirror} {suite} main\ndeb {mirror} {suite}-updates main\n\
             deb {mirror}-security {suite}-security main\n"
        ));
    }
    let own = sources::of_suite(Path::new("/etc/apt"), suite, sources::host_suite().as_deref());
    if own.is_empty() {
        return Err(Error::unavailable(format!(
            "this machine has no apt source for Debian {suite}\n\
             hint: name a mirror with --mirror, or add one to /etc/apt/sources.list.d"
        )));
    }
    Ok(own)
}

/// Hosts and ports of that mirror, or of those of every suite that the machine has.
pub(super) fn all_sources(mirror: Option<&str>) -> Vec<(String, u16)> {
    let suite = sources::host_suite().unwrap_or_else(|| "bookworm".into());
    // Without any, nothing is fetched from one.
    let lines = sources(&suite, mirror).unwrap_or_default();
    let words = lines.split_whitespace();
    let mut all: Vec<(String, u16)> = words.filter_map(host_and_port).collect();
    all.sort();
    all.dedup();
    all
}

fn host_and_port(uri: &str) -> Option<(String, u16)> {
    let (scheme, rest) = uri.split_once("://")?;
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = rest.split('/').next()?.rsplit('@').next()?;
    match host.rsplit_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((host.to_owned(), default)),
    }
}

/// The first sandbox's work. `lines` are apt sources.
///
/// # Errors
/// `Unavailable` with the package to install.
pub(super) fn unpack(suite: &str, lines: &str) -> Result<Script> {
    if !Path::new("/usr/bin/mmdebstrap").exists() {
        return Err(Error::unavailable(
            "mmdebstrap is not installed: run `apt-get install mmdebstrap` and try again",
        ));
    }
    if lines.contains('\'') {
        return Err(Error::unavailable("this machine's apt sources contain a quote"));
    }
    let script = format!(
        "grep -q ^_apt: /etc/passwd || echo '_apt:x:42:65534::/nonexistent:/usr/sbin/nologin' \
         >> /etc/passwd\n\
         mkdir /{ROOTFS}\n\
         export TMPDIR=/var/tmp LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         printf '%s' '{lines}' | mmdebstrap --mode=root --variant=extract --format=directory \
         --skip=chroot/mount,check/canmount,output/mknod,output/dev,cleanup,essential/unlink \
         --setup-hook='cd \"$1\" && mkdir -p usr/bin usr/sbin usr/lib usr/lib64 && \
         ln -s usr/bin bin && ln -s usr/sbin sbin && ln -s usr/lib lib && ln -s usr/lib64 lib64' \
         --include='?essential' --include=apt,usr-is-merged,ca-certificates {suite} /{ROOTFS} -\n\
         rm -rf /{ROOTFS}/dev /{ROOTFS}/usr/share/doc /{ROOTFS}/usr/share/man \
         /{ROOTFS}/usr/share/info /{ROOTFS}/usr/share/locale /{ROOTFS}/tmp/* \
         /{ROOTFS}/var/lib/apt/lists/*\n\
         mkdir -p /{ROOTFS}/dev\n\
         : > /{ROOTFS}/etc/resolv.conf; echo sandbox > /{ROOTFS}/etc/hostname\n"
    );
    Ok(root_shell(&script))
}

/// The second's: every package's own scripts, in the order that dpkg finds.
pub(super) fn configure() -> Script {
    root_shell(
        "export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8\n\
         mkdir -p /etc/dpkg/dpkg.cfg.d\n\
         for place in doc man info locale; do echo \"path-exclude=/usr/share/$place/*\"; done \
         > /etc/dpkg/dpkg.cfg.d/bastide\n\
         echo 'path-include=/usr/share/doc/*/copyright' >> /etc/dpkg/dpkg.cfg.d/bastide\n\
         printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d\n\
         chmod 755 /usr/sbin/policy-rc.d\n\
         dpkg --force-depends --force-unsafe-io --install /var/cache/apt/archives/*.deb\n\
         test -z \"$(dpkg --audit)\"\n\
         rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /var/cache/apt/*.bin\n\
         rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log\n\
         rm -rf /etc/apt/apt.conf.d/99mmdebstrap /etc/dpkg/dpkg.cfg.d/99mmdebstrap\n\
         rm -f /etc/machine-id; : > /etc/machine-id\n",
    )
}

/// Keys that the sources name and that the first sandbox does not see by itself.
pub(super) fn keys(lines: &str) -> Vec<PathBuf> {
    let named = lines.split("signed-by=").skip(1);
    let paths = named.filter_map(|rest| rest.split([']', ' ', ',']).next());
    let mut keys: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    keys.retain(|path| !path.starts_with(KEYRINGS) && path.is_absolute());
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_mirror_is_where_packages_come_from() {
        let lines = sources("trixie", Some("http://mirror.test:8080/debian/")).unwrap();
        assert_eq!(
            lines,
            "deb http://mirror.test:8080/debian trixie main\n\
             deb http://mirror.test:8080/debian trixie-updates main\n\
             deb http://mirror.test:8080/debian-security trixie-security main\n"
        );
        let hosts = all_sources(Some("http://mirror.test:8080/debian"));
        assert_eq!(hosts, [("mirror.test".to_owned(), 8080)]);
    }
}
