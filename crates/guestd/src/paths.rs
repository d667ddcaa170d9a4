//! What the paths of clients mean (envd's rules).

/// Empty: the working directory, else the home. `~` and what is relative: under the home. Anything
/// else is taken as it is. The answer has no `.`, `..` or doubled slash in it.
pub(crate) fn resolve(path: &str, workdir: &str, home: &str) -> String {
    if path.is_empty() {
        return clean(if workdir.is_empty() { home } else { workdir });
    }
    if path.starts_with('/') {
        return clean(path);
    }
    let rest = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    };
    clean(&format!("{home}/{rest}"))
}

/// By text alone, as Go's `filepath.Clean` does for absolute paths.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The directory that a path is in, and its name there. The root is in itself.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &str) {
        assert_eq!(resolve(path, "/work", "/home/user"), expected);
    }

    #[test]
    fn paths_mean_what_envd_says() {
        check("", "/work");
        check("~", "/home/user");
        check("~/x", "/home/user/x");
        check("~x", "/home/user/~x");
        check("a/./b//c/../d", "/home/user/a/b/d");
        check("../../../etc", "/etc");
        check("/etc//x/", "/etc/x");
        check("/..", "/");
        assert_eq!(resolve("", "", "/home/user"), "/home/user");
    }

    #[test]
    fn a_path_splits_into_its_directory_and_name() {
        assert_eq!(split("/a/b"), ("/a", "b"));
        assert_eq!(split("/a"), ("/", "a"));
        assert_eq!(split("/"), ("/", ""));
    }
}
