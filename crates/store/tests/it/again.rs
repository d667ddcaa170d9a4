//! Running the tests of a binary once more, on `PostgreSQL`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{Cluster, database};

/// Where a test finds the cluster that another process has started; absent, it uses `SQLite`.
const VARIABLE: &str = "BASTIDE_TEST_POSTGRES";

/// The URL for what is kept in `dir`, when another process has started a cluster for us.
pub(crate) fn url_for(dir: &Path) -> Option<String> {
    let socket = PathBuf::from(std::env::var_os(VARIABLE)?);
    let name = dir.file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_lowercase();
    // Two directories may differ in case alone.
    let hash = dir.to_str().unwrap().bytes().fold(7u64, |h, b| h.wrapping_mul(131) ^ u64::from(b));
    Some(database(&socket, &format!("{name}_{hash:x}")))
}

/// Runs tests of this binary once more, with a cluster.
pub(crate) fn run_again_on_postgres(arguments: &[&str]) {
    let cluster = Cluster::start();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env(VARIABLE, cluster.socket())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(!said.contains("running 0 tests"), "{said}");
}
